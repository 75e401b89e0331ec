"""The wait of a launcher for a place in the job: what its user reads, and when it is in vain."""

import os
import time
from collections.abc import Callable

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network.connections import Connections
from recoverrun.launcher.network.handshake_diagnosis import (
    has_ended,
    hopeless,
    is_rendezvous,
    mute,
)
from recoverrun.launcher.network.key_lookup import Keyring
from recoverrun.launcher.network.name_lookup import (
    AGAIN_S,
    LOOK_S,
    NameLookup,
    names_may_come,
)
from recoverrun.launcher.node.signals import SignalInbox
from recoverrun.launcher.output.announcements import (
    spare,
    still_waiting,
    unanswered_name,
    unknown_name,
)
from rendezvous.membership.formation import TELL_AFTER_S, TELL_AGAIN_S
from rendezvous.protocol.exit_codes import SIGNALLED, ExitCode

LOOK_AGAIN_S = 2.0
"""After that a launcher that was left out looks again whether the others have ended."""


class JobWait:
    """The wait of a launcher whose workers do not run."""

    def __init__(
        self,
        config: RunConfig,
        say: Callable[[str], None],
        began_at: float,
        left_out: str = "",
    ) -> None:
        """`say` prints a line for the user. `left_out`: why the job went on without us, or ""."""
        self._config = config
        self.left_out = left_out
        self._look_at = began_at  # whether those are left that went on
        self._say = say
        self._since = began_at
        self._tell_at = began_at + TELL_AFTER_S
        self._spare = False  # the job runs, for now without us

    def look_up(self, signals: SignalInbox) -> None:
        """See that the endpoints' names are known. Raises RecoverrunError if they cannot be, or if
        the user leaves meanwhile.
        """
        if self._config.must_host:
            self._look_for_another()  # The name leads here, but perhaps only from outside.
            return
        lookup = NameLookup(self._config.endpoints)
        unknown = lookup.wait(LOOK_S)
        if len(unknown) == len(self._config.endpoints) and lookup.unanswered:
            unknown = self._await_answer(lookup, signals)
        lookup.end()
        if len(unknown) < len(self._config.endpoints):
            return
        if not names_may_come(os.environ):
            raise RecoverrunError(unknown_name(unknown), ExitCode.NEVER_FORMED)
        self._tell_at += TELL_AGAIN_S
        self._say(unknown_name(unknown, yet_s=self._config.join_timeout_s))

    def _await_answer(self, lookup: NameLookup, signals: SignalInbox) -> list[str]:
        """Wait until the name service has answered of all names: those without an address."""
        names, limit_s = sorted(lookup.unanswered), self._config.join_timeout_s
        self._say(unanswered_name(names, left_s=limit_s - LOOK_S))
        unknown, until = lookup.unknown, time.monotonic() + limit_s - LOOK_S
        while lookup.unanswered and unknown and time.monotonic() < until:
            unknown = lookup.wait(AGAIN_S)
            if (number := signals.stopper()) is not None:
                raise RecoverrunError(f"{number.name} was sent to the launcher", SIGNALLED + number)
        if lookup.unanswered and unknown:
            raise RecoverrunError(unanswered_name(names), ExitCode.NEVER_FORMED)
        return unknown

    def _look_for_another(self) -> None:
        """We are to listen at the endpoint, and do not yet: whoever answers there is not us. Where
        the endpoint is on another machine both would wait for the other nodes, each as the first.
        """
        for endpoint in filter(is_rendezvous, self._config.endpoints):
            self._say(
                f"! another launcher answers at {endpoint} already: does another node have node "
                "rank 0, too, or has another job this endpoint?"
            )

    def begin(self, now: float) -> None:
        """We have asked for a place, or were told to wait for one."""
        self._since, self._tell_at = now, now + TELL_AFTER_S

    def be_spare(self, now: float) -> None:
        """The job runs, and we wait beside it."""
        self.begin(now)
        if not self._spare:
            self._spare = True
            self._say(spare(self._config))

    def be_spare_elsewhere(self) -> None:
        """The coordinator has changed while we wait as a spare: ask the new one."""
        self._say("recoverrun: another launcher coordinates the job now; this one waits on")

    def be_called(self, place: tuple[str, int]) -> None:
        """The job runs already: another launcher, at `place`, coordinates it."""
        self._say(f"recoverrun: this job runs already; asking {place[0]}:{place[1]} for a place")

    def give_up(self, connections: Connections, keyring: Keyring, now: float) -> None:
        """Leave if nobody whom we could join is there. Raises RecoverrunError."""
        uplink = connections.uplink
        if uplink is None:
            return
        waited_s, failures = now - self._since, uplink.new_strangers()
        known = connections.acquainted
        words = hopeless(self._config, keyring, waited_s, failures, known=known)
        if self.left_out and words:
            words = f"none of the others has answered for {waited_s:.0f} s"
        elif self.left_out and not known:
            words = self._ended(now)
        if self.left_out and words:
            raise RecoverrunError(f"{self.left_out}; {words}", ExitCode.PARTITIONED)
        if words:
            raise RecoverrunError(words, ExitCode.NEVER_FORMED)
        if now >= self._tell_at and not self._spare:
            self._tell_at = now + TELL_AGAIN_S
            left_s = max(0.0, self._config.join_timeout_s - waited_s)
            if self.left_out and not known:
                self._say(f"none of the others answers yet, {left_s:.0f} s left")
            else:
                silent = "" if known else mute(self._config.endpoints)
                words = still_waiting(self._config, known=known, mute=silent, left_s=left_s)
                self._say(words)

    def _ended(self, now: float) -> str:
        """The sentence for a user where the hosts of all who went on say that they have ended."""
        if now < self._look_at:
            return ""
        self._look_at = now + LOOK_AGAIN_S
        over = all(map(has_ended, self._config.endpoints))
        return "none of the others is left to ask for a place" if over else ""

    def lose_sight(self, silent_s: float) -> None:
        """The launcher at the endpoint is silent: forming goes on, a spare has nobody to ask."""
        if self._spare:
            where = f"the launcher at {self._config.endpoint}, which coordinates this run,"
            words = f"{where} has been silent for {silent_s:.1f} s"
            raise RecoverrunError(words, ExitCode.PARTITIONED)
