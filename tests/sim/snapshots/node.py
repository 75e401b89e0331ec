"""A node: a launcher, its keeper with the production machine, and what both hold.

What travels between processes of one node comes in order, once, unless one of them ends.
"""

from collections.abc import Callable

from rendezvous.protocol.snapshot_messages import Circle, Exchanging, Holding, Order
from rendezvous.snapshots.holdings import Bay, KeeperHoldings, is_settled, order_of_start
from rendezvous.snapshots.identity import NO_ORDER, SnapshotId
from rendezvous.snapshots.kept_shares import KeptShares
from tests.sim.engine import Engine
from tests.sim.snapshots.exchanges import NodeShares, Share, SimExchange, Wire
from tests.sim.snapshots.memory import Memory, Numbers

REPLACE_S = 0.2
"""Until a keeper that has ended is replaced."""

TELL_AGAIN_S = 1.0

SIZE = 100


class Keeper:
    """One process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.serial = 0
        self.machine = KeeperHoldings()
        self.memory: dict[int, Memory] = {}
        self.shares = KeptShares()
        self.stalled_until = 0.0
        self.alive = True


class Node:
    """`tell` takes what its launcher says to the coordinator."""

    def __init__(
        self, name: str, ranks: range, engine: Engine, numbers: Numbers, world: int, sum_s: float,
        tell: Callable[[str, Holding | Exchanging], None], wire: Wire | None,
    ) -> None:  # fmt: skip
        self.name, self.ranks = name, ranks
        self._engine, self._numbers, self._world, self._sum_s = engine, numbers, world, sum_s
        self._tell = tell
        self.alive = True
        self.order: Order = NO_ORDER  # as the launcher has heard
        self.bays: dict[int, Memory] = {}  # of which the launcher has a descriptor
        self.holding = Holding(keeper=0, serial=0, order=NO_ORDER, held=())
        self.processes: set[tuple[int, int]] = set()  # (rank, incarnation) that live
        self.keeper: Keeper | None = None
        self.shares: dict[int, Share] = {}  # of which the launcher has a descriptor
        self.exchange: SimExchange | None = None
        self._wire = wire
        self._keepers = 0
        self.start()
        self.start_exchange()
        engine.after(TELL_AGAIN_S, self._tell_again)

    # --------------------------------------------------------------------------- the launcher

    def start(self) -> None:
        """Another keeper is handed all that there is before anybody calls it."""
        if self.keeper is not None or not self.alive:
            return
        self._keepers += 1
        keeper = self.keeper = Keeper(self._keepers)
        for memory in self.bays.values():
            self._hand_over(keeper, memory)
        for number, share in self.shares.items():
            keeper.shares.add(number, share.id)
        self._keep_all(keeper, self.order)
        self._announce(keeper)

    def _keep_all(self, keeper: Keeper, order: Order) -> None:
        keeper.machine.keep(order)
        for number in keeper.shares.keep(order):
            self.shares.pop(number, None)

    def start_exchange(self) -> None:
        """With a port of its own."""
        if self._wire is not None and self.alive:
            memory = NodeShares(self, self._numbers)
            self.exchange = SimExchange(memory, self._wire, self._engine, self._told)
            self.exchange.begin(self.holding)

    def _told(self, exchanging: Exchanging) -> None:
        self._tell(self.name, exchanging)

    def kill_exchange(self) -> None:
        if self.exchange is not None:
            self.exchange.alive, self.exchange = False, None
            self._engine.after(REPLACE_S, self.start_exchange)

    def join(self, circle: Circle) -> None:
        """The coordinator's word for the exchange."""
        if self.exchange is not None:
            self.exchange.join(circle)

    def take_share(self, share: Share) -> None:
        """The exchange hands one over."""
        if (keeper := self.keeper) is not None:
            self._when_it_moves(keeper, self._take_share, keeper, share)

    def _take_share(self, keeper: Keeper, share: Share) -> None:
        if self._is_here(keeper):
            number = self._numbers.next()
            self.shares[number] = share
            for gone in keeper.shares.add(number, share.id):
                self.shares.pop(gone, None)
            self._announce(keeper)

    def take_bay(self, memory: Memory) -> None:
        """The exchange hands one over that was on another node."""
        if (keeper := self.keeper) is not None:
            self._when_it_moves(keeper, self._take_bay, keeper, memory)

    def _take_bay(self, keeper: Keeper, memory: Memory) -> None:
        if self._is_here(keeper):
            self.bays[memory.number] = memory
            self._hand_over(keeper, memory)
            for number in keeper.machine.surplus(memory.rank):
                keeper.memory.pop(number)
                self.bays.pop(number, None)
            self._announce(keeper)

    def _hand_over(self, keeper: Keeper, memory: Memory) -> None:
        keeper.memory[memory.number] = memory
        owner = memory.maker if memory.maker >= 0 else None
        if owner is not None:
            keeper.machine.attach(memory.rank, owner)
        keeper.machine.made(Bay(memory.number, memory.rank, SIZE, owner))
        if memory.header is not None:
            keeper.machine.adopt(memory.number, memory.header, memory.world, summed=memory.summed)
            if not memory.summed:
                self._engine.after(self._sum_s, self._sum, keeper, memory, memory.header)

    def begin(self, attempt: int, restored: SnapshotId) -> None:
        """An attempt begins here."""
        self.obey(order_of_start(self.holding, attempt, restored, parity=self._wire is not None))

    def obey(self, order: Order) -> None:
        """The coordinator's, or that of a start."""
        self.order = max(self.order, order)
        if (keeper := self.keeper) is not None:
            self._when_it_moves(keeper, self._keep, keeper, order)

    def _keep(self, keeper: Keeper, order: Order) -> None:
        if self._is_here(keeper):
            self._keep_all(keeper, order)
            self._announce(keeper)

    def _tell_again(self) -> None:
        if self.alive:
            waits = self.exchange is not None and not self.exchange.machine.is_settled
            if waits or not is_settled(self.holding):
                self._tell(self.name, self.holding)
                if self.exchange is not None:
                    self._tell(self.name, self.exchange.standing)
            self._engine.after(TELL_AGAIN_S, self._tell_again)

    def kill_keeper(self) -> None:
        if self.keeper is not None:
            self.keeper.alive = False
            self.keeper = None
            self._engine.after(REPLACE_S, self.start)

    def die(self) -> None:
        """Launcher, keeper and all memory."""
        self.alive = False
        self.keeper = None
        self.bays.clear()
        self.shares.clear()
        if self.exchange is not None:
            self.exchange.alive, self.exchange = False, None

    # --------------------------------------------------------------------------- the keeper

    def reserve(self, rank: int, incarnation: int, turn: int) -> Memory | None:
        """For a worker. None: it gets no answer in time, or none that helps."""
        keeper = self.keeper
        if keeper is None or self._stalls(keeper):
            return None
        if not keeper.machine.attach(rank, incarnation):
            return None
        room = keeper.machine.reserve(rank, incarnation, SIZE, turn)
        if room is None:
            return None
        for number in room.dropped:
            del keeper.memory[number]
            self.bays.pop(number, None)
        if room.number is None:
            memory = self._numbers.make(rank, incarnation)
            keeper.memory[memory.number] = self.bays[memory.number] = memory
            keeper.machine.made(Bay(memory.number, rank, SIZE, incarnation))
        else:
            memory = keeper.memory[room.number]
        memory.header, memory.summed = None, False
        self._announce(keeper)
        return memory

    def filled(self, rank: int, incarnation: int, memory: Memory) -> None:
        """A worker says so; it was heard when the keeper moves."""
        if (keeper := self.keeper) is not None:
            self._when_it_moves(keeper, self._fill, keeper, rank, incarnation, memory)

    def _fill(self, keeper: Keeper, rank: int, incarnation: int, memory: Memory) -> None:
        header = memory.header
        if not self._is_here(keeper) or memory.number not in keeper.memory or header is None:
            return
        if keeper.machine.filled(rank, incarnation, memory.number, header, memory.world):
            self._engine.after(self._sum_s, self._sum, keeper, memory, header)

    def _sum(self, keeper: Keeper, memory: Memory, header: SnapshotId) -> None:
        if self._is_here(keeper) and keeper.machine.summed(memory.number, header):
            memory.summed = True
            self._announce(keeper)

    def fetch(self, rank: int, incarnation: int, wanted: SnapshotId) -> Memory | None:
        """For a worker that begins."""
        keeper = self.keeper
        if keeper is None or not keeper.machine.attach(rank, incarnation):
            return None
        bay = keeper.machine.find(rank, wanted)
        return None if bay is None else keeper.memory[bay.number]

    def ended(self, rank: int, incarnation: int) -> None:
        """The kernel says that this process is gone."""
        self.processes.discard((rank, incarnation))
        if self.keeper is not None:
            self.keeper.machine.end(rank, incarnation)

    def _announce(self, keeper: Keeper) -> None:
        keeper.serial += 1
        self.holding = Holding(
            keeper=keeper.number, serial=keeper.serial, order=keeper.machine.order,
            held=keeper.machine.statement(), shares=keeper.shares.statement(),
        )  # fmt: skip
        self._tell(self.name, self.holding)
        if self.exchange is not None:
            self.exchange.hear(self.holding)

    # --------------------------------------------------------------------------- time

    def _is_here(self, keeper: Keeper) -> bool:
        return keeper.alive and keeper is self.keeper

    def _stalls(self, keeper: Keeper) -> bool:
        return keeper.stalled_until > self._engine.now

    def _when_it_moves(self, keeper: Keeper, call: Callable[..., None], *args: object) -> None:
        self._engine.at(max(self._engine.now, keeper.stalled_until), call, *args)
