"""The part of a launcher for the snapshots of its node: the keeper, and where nodes make parity for
each other an exchange beside it.
"""

from collections.abc import Callable, Collection

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.exchange_process import NodeExchange
from recoverrun.launcher.node.keepers import NodeKeeper
from recoverrun.launcher.node.snapshot_dir import SnapshotDir
from rendezvous.protocol.exchange_messages import Employ
from rendezvous.protocol.fault_schedule import of_attempt, parse, render
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.messages import Message
from rendezvous.protocol.records import Record, notice
from rendezvous.protocol.snapshot_messages import Circle, Held, Holding, Keep, Persist, Share
from rendezvous.protocol.worker_env import UNASKED
from rendezvous.transport.keys import JobKey
from rendezvous.transport.station import Station


class NodeSnapshots:
    def __init__(
        self,
        path: str,
        config: RunConfig,
        key: JobKey | None,
        *,
        station: Station,
        record: Callable[[Record], None],
        directory: SnapshotDir | None = None,
        undirected: str = "",
    ) -> None:
        """Start the keeper, which listens at `path`; where snapshots go without saying, as soon as
        a worker calls it. Raises OSError, RecoverrunError.

        `directory`: where snapshots are written to, and come from as a job begins; `undirected`:
        the reason for which that is none though one was given.
        """
        self._config, self._key, self._station, self._record = config, key, station, record
        self._start: Start | None = None
        self._exchange: NodeExchange | None = None
        self._parity = False
        self._keeper = NodeKeeper(
            path,
            watch=station.watch,
            unwatch=station.unwatch,
            record=record,
            directory=directory,
            undirected=undirected,
            allowance=config.snapshots.memory,
            at_once=config.recovery_policy.snapshot_every != UNASKED,
        )

    @property
    def path(self) -> str:
        """The socket at which workers call the keeper."""
        return self._keeper.path

    @property
    def pids(self) -> frozenset[int]:
        exchange = self._exchange
        return self._keeper.pids | (frozenset() if exchange is None else exchange.pids)

    @property
    def held(self) -> tuple[Held, ...]:
        """The parts of snapshots that are here."""
        return self._keeper.held

    @property
    def holding(self) -> Holding:
        """The newest statement of the keeper."""
        return self._keeper.holding

    @property
    def shares(self) -> tuple[Share, ...]:
        """The parity that is here."""
        return self._keeper.holding.shares

    @property
    def standing(self) -> list[Message]:
        """The messages for another coordinator."""
        exchange = self._exchange
        told = None if exchange is None else exchange.standing
        return [self._keeper.holding, *([] if told is None else [told])]

    # --------------------------------------------------------------------------- events

    def begin(self, start: Start) -> None:
        """An attempt begins here."""
        self._start = start
        self._parity = bool(self._config.recovery_policy.snapshot_parity) and start.nnodes > 1
        self._keeper.begin(start, parity=self._parity)
        self._employ()

    def _employ(self) -> None:
        """Start the exchange, if there is a use for it."""
        wanted = self._parity and not self._keeper.awaits
        if wanted and self._exchange is None and self._start is not None:
            self._exchange = self._employed(self._start)

    def _employed(self, start: Start) -> NodeExchange | None:
        endpoint = self._config.endpoint
        assert endpoint is not None, "there are several nodes"
        key = b"" if self._key is None else self._key.root
        try:
            return NodeExchange(
                self.path,
                Employ(
                    key=key,
                    host=endpoint.host,
                    port=endpoint.port,
                    allowance=self._config.snapshots.memory.written(),
                    inject=_amid_parity(self._config.inject, start),
                ),
                watch=self._station.watch,
                unwatch=self._station.unwatch,
                record=self._record,
            )
        except RecoverrunError as error:
            self._record(notice(f"snapshots have no parity: no exchange can be started: {error}"))
            return None

    @property
    def is_used(self) -> bool:
        """True if there is a snapshot, or a part of one."""
        return self._keeper.is_used

    def persist(self, order: Persist) -> list[Message]:
        """Have the parts of this node written to the directory; what there is to say of it now."""
        return self._keeper.persist(order)

    def obey(self, order: Keep | Circle) -> None:
        """The coordinator's."""
        if isinstance(order, Keep):
            self._keeper.keep(order.order, order.unfit)
        elif self._exchange is not None and self._start is not None:
            if order.attempt == self._start.attempt:
                self._exchange.join(order, self._start)

    def read(self, ready: Collection[object]) -> list[Message]:
        """The messages for the coordinator."""
        awaited = self._keeper.awaits
        told = self._keeper.read(ready)
        if awaited:
            self._employ()
        if self._exchange is None:
            return told
        said, start = self._exchange.read(ready), self._start
        standing = self._exchange.standing
        if said and standing is not None and start is not None:
            if standing.heard[0] != start.attempt:
                # The coordinator may wait for what this node has, and have missed it.
                told = [self._keeper.holding]
        return [*told, *said]

    def tick(self, now: float) -> list[Message]:
        """Time passed. What the coordinator may not have heard is told again, and with it where
        this node's exchange is: another one waits for all of them.
        """
        again = self._keeper.tick(now)
        standing = None if self._exchange is None else self._exchange.standing
        return [*again, standing] if again and standing is not None else again

    def deadline(self) -> float | None:
        """The time at which `tick` is next needed, or None."""
        return self._keeper.deadline()

    def end(self) -> None:
        """The job is over: no memory is needed any more."""
        if self._exchange is not None:
            self._exchange.end()
        self._keeper.end()


def _amid_parity(schedule: str, start: Start) -> str:
    """The kills that are ordered for this node while it makes parity."""
    ranks = range(start.first_rank, start.first_rank + start.nproc)
    kills = parse(of_attempt(schedule, start.attempt))
    return render([kill for kill in kills if kill.phase == "parity" and kill.rank in ranks])
