"""The groups of nodes for parity, as the coordinator tells their exchanges.

All are told the same, as a total with a number: once each exchange has said where it can be called
and each keeper what it has, and again where an exchange was replaced. An exchange says the newest
number that it has heard; one that is behind is told again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rendezvous.protocol.snapshot_messages import Circle, Exchanging, Holding, Share, Source
from rendezvous.snapshots.identity import NONE, SnapshotId
from rendezvous.snapshots.parity_groups import groups_of
from rendezvous.snapshots.restore_plan import Node, missing, sources


@dataclass(frozen=True, slots=True)
class ToExchanges:
    """Have this launcher tell its exchange, or all launchers theirs ("")."""

    message: Circle
    launcher: str = ""


class ParityCircle:
    """The circle of one attempt at a time. Launchers are named by their incarnations."""

    def __init__(self, level: int) -> None:
        """`level`: nodes of each group that may be lost."""
        self._wanted = level
        self.level = 0  # parity that the present number of nodes allows
        self.names: list[str] = []  # launchers by node rank
        self.brought: tuple[int, ...] = ()  # ranks whose parts come from other nodes
        self._attempt = 0
        self._ranks: tuple[int, ...] = ()
        self._share: dict[str, tuple[int, int, tuple[tuple[int, int], ...]]] = {}
        self._exchanges: dict[str, Exchanging] = {}
        self._restored = NONE
        self.exposed = False  # the restored snapshot may lack parity
        self._sources: tuple[Source, ...] | None = None  # known once all have said what they have
        self._told: Circle | None = None
        self._number = 0

    def begin(self, attempt: int, ranks: Mapping[str, range], restored: SnapshotId | None) -> None:
        """An attempt has formed."""
        self._attempt, self._restored = attempt, restored or NONE
        self._number, self.brought = 0, ()
        self.set_ranks(ranks)
        self.exposed = restored is not None and bool(self._share)

    def set_ranks(self, ranks: Mapping[str, range]) -> None:
        """These launchers have places from now on, some perhaps in the middle of the attempt."""
        self.names = sorted(ranks, key=lambda name: ranks[name].start)
        self._ranks = tuple(len(ranks[name]) for name in self.names)
        groups = groups_of(self._ranks, self._wanted)
        self._share = {
            self.names[node]: (group.level, slot, group.members)
            for nodes, group in groups
            for slot, node in enumerate(nodes)
        }
        self.level = min((group.level for _, group in groups), default=0)
        self._exchanges = {n: one for n, one in self._exchanges.items() if n in ranks}
        self._sources, self._told = None, None

    def give_up(self) -> None:
        """The snapshot that all went back to cannot be rebuilt for those who lost their parts."""
        self._restored, self._sources, self.exposed = NONE, None, False

    def hear(self, launcher: str, exchanging: Exchanging) -> None:
        """Note the address of a launcher's exchange."""
        self._exchanges[launcher] = exchanging
        attempt, number = exchanging.heard
        if attempt == self._attempt:
            self._number = max(self._number, number)  # it may be another coordinator's

    def lose(self, launcher: str) -> None:
        """The node of this launcher is gone."""
        self._exchanges.pop(launcher, None)

    def due(self, launcher: str, nodes: Sequence[Node] | None) -> list[ToExchanges]:
        """The orders to exchanges now; `nodes` is what all have, None if that is not known.

        `launcher` has just said what it has heard, if it is named.
        """
        known = len(self._exchanges) == len(self.names) and all(
            one.port for one in self._exchanges.values()
        )
        if not (self._share and known and nodes is not None):
            return []
        if self._sources is None:
            self._sources = self._found(nodes)
        ports = tuple(self._exchanges[name].port for name in self.names)
        told = self._told
        if told is None or told.ports != ports:
            self._number += 1
            self._told = told = Circle(
                attempt=self._attempt, number=self._number, level=self._wanted,
                ranks=self._ranks, ports=ports, of=self._restored, sources=self._sources,
            )  # fmt: skip
            return [ToExchanges(told)]
        behind = launcher and self._exchanges[launcher].heard < (told.attempt, told.number)
        return [ToExchanges(told, launcher)] if behind else []

    def _found(self, nodes: Sequence[Node]) -> tuple[Source, ...]:
        if self._restored == NONE:
            return ()
        world = sum(self._ranks)
        parts = [{h[3] for h in held if h[:3] == (*self._restored, world)} for _, held, _ in nodes]
        self.brought = tuple(missing(self._ranks, parts))
        return sources(nodes, self._restored) or ()

    # --------------------------------------------------------------------------- what stands

    def unable(self, of: SnapshotId) -> str:
        """The reason why its parity will not stand, if that is known."""
        short = [n for n, one in self._exchanges.items() if tuple(one.unable) == of]
        many = len(short)
        return f"too little memory for parity on {many} of {len(self.names)} nodes" if short else ""

    def stands(self, of: SnapshotId, holdings: Mapping[str, Holding]) -> bool:
        """True if each node has the parity of this snapshot that it should have."""
        world = sum(self._ranks)
        return all(
            (holding := holdings.get(name)) is not None
            and holding.order[0] == self._attempt  # else it may have dropped it since
            and _share(of, world, *mine) in holding.shares
            for name, mine in self._share.items()
        )


def _share(
    of: SnapshotId, world: int, level: int, slot: int, members: tuple[tuple[int, int], ...]
) -> Share:
    return (*of, world, level, slot, members)
