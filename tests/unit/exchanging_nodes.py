"""Nodes in one process whose exchanges talk to each other at once: bytes in dicts, nothing lost."""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from zlib import crc32

from rendezvous.protocol.exchange_messages import Bytes, Described, Request
from rendezvous.protocol.snapshot_messages import Circle, Holding, Source
from rendezvous.snapshots.exchange import Exchange
from rendezvous.snapshots.exchange_work import Answer, Ask, Effect, KeptSnapshot, ShareId
from rendezvous.snapshots.identity import NONE, SnapshotId
from rendezvous.snapshots.member_stream import Extents
from rendezvous.snapshots.parity_code import ROWS, Part, fastest, padded
from rendezvous.snapshots.parity_groups import Member
from rendezvous.snapshots.restore_plan import sources

PART = ROWS * 16
OF = SnapshotId(0, 5)

Parts = dict[tuple[int, int], bytes]


class DictMemory:
    """Implements `exchange_work.NodeMemory`, of one snapshot."""

    def __init__(self, bays: dict[int, bytes]) -> None:
        self.bays = bays  # by rank
        self.made: dict[ShareId, tuple[tuple[Extents, ...], Parts]] = {}
        self.coming: dict[int, bytearray] = {}
        self.spoils: set[int] = set()  # ranks whose part is damaged on its way, once
        self.full = ""
        self.checked = 0  # parts of parity whose CRC was known

    def extents(self, of: KeptSnapshot, member: Member) -> Extents:
        ranks = range(member[0], sum(member))
        if not all(rank in self.bays for rank in ranks):
            return ()
        return tuple((rank, 100, len(self.bays[rank])) for rank in ranks)

    def read(self, of: KeptSnapshot, rank: int, offset: int, nbytes: int) -> bytes | None:
        return self.bays[rank][offset : offset + nbytes]

    def shares(self) -> tuple[ShareId, ...]:
        return tuple(self.made)

    def share_extents(self, share: ShareId) -> tuple[Extents, ...] | None:
        return self.made[share][0]

    def read_share(self, share: ShareId, column: int, part: int) -> bytes | None:
        return padded(self.made[share][1].get((column, part), b""), PART)

    def begin_share(self, share: ShareId, extents: tuple[Extents, ...], parts: int) -> str:
        self._share = extents, Parts()
        return self.full

    def write_share(
        self, share: ShareId, column: int, part: int, data: Part, check: int | None
    ) -> None:
        self._share[1][column, part] = whole = bytes(data)
        assert check in (None, crc32(padded(whole, PART)))
        self.checked += check is not None

    def end_share(self, share: ShareId) -> None:
        self.made[share] = self._share

    def drop_share(self, share: ShareId) -> None:
        pass

    def begin_bays(self, of: KeptSnapshot, extents: Extents) -> str:
        self.coming |= {rank: bytearray(used) for rank, _, used in extents}
        return self.full

    def write_bay(self, of: KeptSnapshot, rank: int, offset: int, data: Part) -> None:
        self.coming[rank][offset : offset + len(data)] = data

    def end_bays(self, of: KeptSnapshot, extents: Extents) -> str:
        for rank, _, _ in extents:
            if rank in self.spoils:
                self.spoils.discard(rank)
                return f"rank {rank} is damaged"
            self.bays[rank] = bytes(self.coming.pop(rank))
        return ""

    def drop_bays(self, of: KeptSnapshot, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.coming.pop(rank, None)


class ExchangingNodes:
    """`nproc` ranks of each node; what they hold has another length at each rank."""

    def __init__(
        self, nproc: Sequence[int], level: int, seed: int = 1, *, authenticated: bool = False
    ) -> None:
        rng = random.Random(seed)
        self.nproc, self.level = nproc, level
        self.truth = {rank: rng.randbytes(rng.randrange(1, 700)) for rank in range(sum(nproc))}
        self.number = 0
        self.told: list[str] = []
        self.damaged = 0  # of the next answers so many have a flipped bit
        self.memory = [DictMemory({r: self.truth[r] for r in self.ranks(n)}) for n in self.places]
        self.exchanges = [
            Exchange(memory, fastest(), PART, authenticated=authenticated) for memory in self.memory
        ]
        self._mail: deque[tuple[int, str, Request | Described | Bytes, bytes]] = deque()

    @property
    def places(self) -> range:
        return range(len(self.nproc))

    def ranks(self, node: int) -> range:
        first = sum(self.nproc[:node])
        return range(first, first + self.nproc[node])

    def holding(self, node: int) -> Holding:
        world, memory = sum(self.nproc), self.memory[node]
        held = tuple((*OF, world, rank, 100) for rank in sorted(memory.bays))
        order = self.number, 1, OF, NONE
        return Holding(
            keeper=1, serial=1, order=order, held=held, shares=tuple(sorted(memory.made))
        )

    def meet(self, found: tuple[Source, ...] = ()) -> None:
        """All hear of a circle, and do what there is to do."""
        self.number += 1
        for node in self.places:
            circle = Circle(
                attempt=self.number, number=1, level=self.level, ranks=tuple(self.nproc),
                ports=tuple(self.places), of=OF, sources=found, node=node,
            )  # fmt: skip
            self._do(node, self.exchanges[node].join(circle, 1.0))
        self.rest()

    def rest(self) -> None:
        """Keepers say what they have, messages arrive, and time passes, until nothing is open."""
        before: list[Holding] = []
        for turn in range(1, 200):
            now = [self.holding(node) for node in self.places]
            for node in self.places:
                self._do(node, self.exchanges[node].hear(self.holding(node), float(turn)))
            self._deliver(float(turn))
            for node in self.places:
                self._do(node, self.exchanges[node].tick(turn + 0.5))
            self._deliver(turn + 0.5)
            if now == before and all(one.deadline() is None for one in self.exchanges):
                return
            before = now
        raise AssertionError("they do not come to an end")

    def lose(self, *nodes: int) -> tuple[Source, ...] | None:
        """Others take their places, with nothing. Where all is, None if not all can be had."""
        for node in nodes:
            self.memory[node] = DictMemory({})
            self.exchanges[node] = Exchange(self.memory[node], fastest(), PART)
        known = (self.holding(node) for node in self.places)
        return sources(
            [(many, one.held, one.shares) for many, one in zip(self.nproc, known, strict=True)], OF
        )

    def _deliver(self, now: float) -> None:
        while self._mail:
            to, sender, message, data = self._mail.popleft()
            if isinstance(message, Described | Bytes):
                self._do(to, self.exchanges[to].answer(message, data, now))
            else:
                self._do(to, self.exchanges[to].ask(sender, message, now))

    def _on_its_way(self, data: bytes) -> bytes:
        if not (self.damaged and data):
            return data
        self.damaged -= 1
        return bytes([data[0] ^ 1]) + data[1:]

    def _do(self, node: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Ask(node=to, request=request):
                    self._mail.append((to, str(node), request, b""))
                case Answer(peer=peer, message=message, data=data):
                    self._mail.append((int(peer), "", message, self._on_its_way(bytes(data))))
                case _:
                    self.told += [effect.trouble] if effect.trouble else []
