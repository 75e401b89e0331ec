"""The last words of a launcher that cannot take part: others of its job would wait in vain.

It says so at the endpoint, in place of asking there for a place. Where it is the one that others
come to, it tells each of them as it comes, and leaves once all have been told. Either takes a
moment if all launchers were started together. Others may come later, as machines of a scheduler
do: it stays for as long as they would wait for it. A user at a terminal has read the error and
need not be kept: the prompt is back soon.
"""

import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network.connections import Connections, Word
from recoverrun.launcher.network.farewell import see_off
from recoverrun.launcher.network.frames import NOBODY
from recoverrun.launcher.network.job_fingerprint import join_message
from recoverrun.launcher.network.key_lookup import Keyring
from rendezvous.membership.agreement import belongs, whereabouts
from rendezvous.protocol.formation_messages import Join, Refusal
from rendezvous.transport.station import Station

AT_TERMINAL_S = 10.0
"""The time for which others are waited for at most where a user waits for the prompt."""

SAY_AFTER_S = 1.0
"""After that the user is told what is waited for."""

TELLING = (
    "recoverrun: this node cannot take part, and waits for the others to tell them, "
    "{:.0f} s at most: {}"
)

AGAIN_S = 0.5
"""A word that found no connection is said again."""


def tell_absence(
    config: RunConfig,
    keyring: Keyring,
    error: RecoverrunError,
    *,
    node: str,
    say: Callable[[str], None],
    watched: bool,
    leaves: Callable[[], bool],
) -> None:
    """Tell the other launchers why `node` does not come; `say` prints a line for the user, who is
    at a terminal if `watched`, and `leaves` by a signal.
    """
    if config.endpoint is None:
        return
    with closing(Station(keyring.key)) as station:
        join = join_message(
            config, node=node, incarnation=station.incarnation, master="", attempt=0,
            agreement="", listen=0,
        )  # fmt: skip
        join = replace(join, hindrance=str(error))
        limit_s = min(config.join_timeout_s, AT_TERMINAL_S if watched else config.join_timeout_s)
        absence = _Absence(config, station, join, error.exit_code, limit_s=limit_s)
        with suppress(RecoverrunError):  # Who cannot reach anybody has an error to end with.
            absence.tell(say, leaves)


class _Absence:
    """The word of one launcher, and who has been told."""

    def __init__(
        self, config: RunConfig, station: Station, join: Join, exit_code: int, *, limit_s: float
    ) -> None:
        self._others = config.nnodes - 1
        self._limit_s = limit_s
        self._station = station
        self._join = join
        reason = f"{whereabouts(join)} cannot take part: {join.hindrance}"
        self._refusal = Refusal(reason=reason, exit_code=exit_code)
        self._connections = Connections(station, config)
        self._told: set[str] = set()
        self._answered = False

    def tell(self, say: Callable[[str], None], leaves: Callable[[], bool]) -> None:
        """Raises RecoverrunError if nobody can be told."""
        began = time.monotonic()
        self._connections.open(began)
        said = False
        until = began + self._limit_s
        while not (self._over or leaves()) and (now := time.monotonic()) < until:
            if not said and now >= began + SAY_AFTER_S:
                said = True
                say(TELLING.format(self._limit_s, self._join.hindrance))
            self._connections.tell_endpoint(self._join)
            ready = self._station.wait(AGAIN_S)
            for word in self._connections.read(ready, now):
                self._hear(word, now)
            self._connections.met()
        if self._told:
            see_off(self._station, self._connections, self._hear)
        self._connections.close()

    @property
    def _over(self) -> bool:
        return self._answered or len(self._told) >= self._others

    def _hear(self, word: Word, _now: float) -> None:
        self._answered = self._answered or word.called
        join = word.message
        if (
            isinstance(join, Join)
            and join.run_id == self._join.run_id
            and belongs(join, self._join)
        ):
            self._connections.send(word.sender, NOBODY, self._refusal)
            self._told.add(word.sender)
