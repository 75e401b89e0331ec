"""An exchange of a simulated node: the production machine, over memory of symbols and a network
that loses, repeats and delays.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol
from zlib import crc32

from rendezvous.protocol.exchange_messages import Bytes, Described, Request
from rendezvous.protocol.snapshot_messages import Circle, Exchanging, Holding
from rendezvous.snapshots.exchange import Exchange
from rendezvous.snapshots.exchange_work import Answer, Ask, Effect, KeptSnapshot, ShareId, Tell
from rendezvous.snapshots.member_stream import Extents
from rendezvous.snapshots.parity_code import ROWS, Part, padded, xor_of_integers
from rendezvous.snapshots.parity_groups import Member
from tests.sim.engine import Engine
from tests.sim.snapshots.memory import Memory, Numbers, packed, unpack

PART = ROWS * 4
SIZE = 100


@dataclass(eq=False, slots=True)
class Share:
    """Parity in memory: parts by column and number."""

    id: ShareId
    extents: tuple[Extents, ...]
    parts: dict[tuple[int, int], bytes] = field(default_factory=dict)


class Place(Protocol):
    """A node, as its exchange knows it."""

    holding: Holding
    bays: dict[int, Memory]
    shares: dict[int, Share]

    def take_share(self, share: Share) -> None: ...
    def take_bay(self, memory: Memory) -> None: ...


class NodeShares:
    """Implements `exchange_work.NodeMemory`."""

    def __init__(self, node: Place, numbers: Numbers) -> None:
        self._node, self._numbers = node, numbers
        self._made: dict[ShareId, Share] = {}
        self._handed: set[ShareId] = set()
        self._keeper = 0
        self._bays: dict[tuple[KeptSnapshot, int], bytearray] = {}
        self.short = False  # of memory for parity

    def _memory(self, of: KeptSnapshot, rank: int) -> Memory | None:
        return next(
            (
                one
                for one in self._node.bays.values()
                if (one.rank, one.header, one.world) == (rank, of[:2], of.world)
            ),
            None,
        )

    def extents(self, of: KeptSnapshot, member: Member) -> Extents:
        first, many = member
        here = {held[3] for held in self._node.holding.held if held[:3] == of}
        found = []
        for rank in range(first, first + many):
            memory = self._memory(of, rank)
            if rank not in here or memory is None:
                return ()
            found.append((rank, SIZE, len(packed(memory))))
        return tuple(found)

    def read(self, of: KeptSnapshot, rank: int, offset: int, nbytes: int) -> bytes | None:
        memory = self._memory(of, rank)
        return None if memory is None else packed(memory)[offset : offset + nbytes]

    def shares(self) -> tuple[ShareId, ...]:
        if self._node.holding.keeper != self._keeper:
            self._keeper = self._node.holding.keeper
            self._handed.clear()
        told = {ShareId(*one) for one in self._node.holding.shares}
        return tuple(sorted(told | self._handed))

    def _share(self, share: ShareId) -> Share | None:
        return next((one for one in self._node.shares.values() if one.id == share), None)

    def share_extents(self, share: ShareId) -> tuple[Extents, ...] | None:
        found = self._share(share)
        return None if found is None else found.extents

    def read_share(self, share: ShareId, column: int, part: int) -> bytes | None:
        found = self._share(share)
        return None if found is None else padded(found.parts.get((column, part), b""), PART)

    def begin_share(self, share: ShareId, extents: tuple[Extents, ...], parts: int) -> str:
        if self.short:
            return "too little memory"
        self._made[share] = Share(share, extents)
        return ""

    def write_share(
        self, share: ShareId, column: int, part: int, data: Part, check: int | None
    ) -> None:
        assert check in (None, crc32(padded(data, PART))), "the CRC of the part"
        assert (column, part) not in self._made[share].parts, "written once"
        self._made[share].parts[column, part] = bytes(data)

    def end_share(self, share: ShareId) -> None:
        self._handed.add(share)
        self._node.take_share(self._made.pop(share))

    def drop_share(self, share: ShareId) -> None:
        self._made.pop(share, None)

    def begin_bays(self, of: KeptSnapshot, extents: Extents) -> str:
        for rank, _, used in extents:
            self._bays[of, rank] = bytearray(used)
        return ""

    def write_bay(self, of: KeptSnapshot, rank: int, offset: int, data: Part) -> None:
        self._bays[of, rank][offset : offset + len(data)] = data

    def end_bays(self, of: KeptSnapshot, extents: Extents) -> str:
        made = []
        for rank, _, _ in extents:
            memory = self._numbers.make(rank, -1)
            right = unpack(bytes(self._bays.pop((of, rank))), memory)
            if not right or (memory.header, memory.world) != (of[:2], of.world):
                return f"rank {rank}"
            made.append(memory)
        for memory in made:
            self._node.take_bay(memory)
        return ""

    def drop_bays(self, of: KeptSnapshot, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._bays.pop((of, rank), None)


class Wire:
    """Between exchanges: to whom a port leads, and how long that takes."""

    def __init__(
        self, engine: Engine, delay_s: Callable[[], float], loss: float, twice: float
    ) -> None:
        self._engine, self._delay_s = engine, delay_s
        self.loss, self.twice = loss, twice
        self._ports = count(1)
        self._open: dict[int, SimExchange] = {}

    def open(self, exchange: "SimExchange") -> int:
        port = next(self._ports)
        self._open[port] = exchange
        return port

    def send(self, port: int, call: Callable[["SimExchange"], None]) -> None:
        many = 0 if self._engine.chance(self.loss) else 1 + self._engine.chance(self.twice)
        for _ in range(many):
            self._engine.after(self._delay_s(), self._arrive, port, call)

    def _arrive(self, port: int, call: Callable[["SimExchange"], None]) -> None:
        exchange = self._open.get(port)
        if exchange is not None and exchange.alive:
            call(exchange)


class SimExchange:
    """One process."""

    def __init__(
        self, memory: NodeShares, wire: Wire, engine: Engine, tell: Callable[[Exchanging], None]
    ) -> None:
        self.machine = Exchange(memory, xor_of_integers, PART)
        self.memory = memory
        self._wire, self._engine, self._tell = wire, engine, tell
        self.alive = True
        self.port = wire.open(self)
        self._ports: tuple[int, ...] = ()
        self._due = float("inf")

    @property
    def standing(self) -> Exchanging:
        return Exchanging(port=self.port, heard=self.machine.heard, unable=self.machine.unable)

    def begin(self, holding: Holding) -> None:
        self._tell(self.standing)
        self.hear(holding)

    def join(self, circle: Circle) -> None:
        if (circle.attempt, circle.number) > self.machine.heard:
            self._ports = circle.ports
        self._do(self.machine.join(circle, self._engine.now))

    def hear(self, holding: Holding) -> None:
        if self.alive:
            self._do(self.machine.hear(holding, self._engine.now))

    def asked(self, peer: str, request: Request) -> None:
        self._do(self.machine.ask(peer, request, self._engine.now))

    def answered(self, message: Described | Bytes, data: bytes) -> None:
        self._do(self.machine.answer(message, data, self._engine.now))

    def _tick(self) -> None:
        if self.alive and self._engine.now >= self._due:
            self._due = float("inf")
            self._do(self.machine.tick(self._engine.now))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Ask(node=node, request=request):
                    peer = str(self.port)
                    self._wire.send(self._ports[node], lambda to, p=peer, r=request: to.asked(p, r))
                case Answer(peer=peer, message=message, data=data):
                    self._wire.send(int(peer), lambda to, m=message, d=data: to.answered(m, d))
                case Tell():
                    self._tell(self.standing)
        due = self.machine.deadline()
        if due is not None and due < self._due:
            self._due = max(due, self._engine.now + 1e-4)
            self._engine.at(self._due, self._tick)
