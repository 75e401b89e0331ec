"""The comparison of ranks between their microbatches: what is inferred of lost ones rests on it.

Between a backward and the next iteration nobody runs code as a lost rank. There its streams are
moved by as many numbers as ours, and what all ranks had in common moves as ours does (`lost_rank`).
So each rank says in the vote of every transaction without a loss, as a digest, how many numbers it
has drawn since the transaction before, what it has in common with the others, and a sample of its
parameters. Where the digests differ, all ranks tell each other what it is. From then on that is
nobody's but its rank's; and if parameters differ, or microbatches draw from a stream of which ranks
draw unequally many numbers, the promise comes down.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.gather_objects import gather
from ft_collectives.step.vote import Tally
from recoverrun.worker.context.fingerprints import is_mark
from recoverrun.worker.context.slot_context import (
    STREAM,
    Context,
    Key,
    belongs_to_process,
    host,
    key_of,
    last,
    told,
)
from recoverrun.worker.context.values import bits, pack, same, unpack
from recoverrun.worker.replay.captures import Captures
from recoverrun.worker.replay.known_state import is_zero_or_empty
from recoverrun.worker.replay.lost_rank import LostRank
from recoverrun.worker.rng.skip_ahead import draws_between, philox_offset
from recoverrun.worker.rng.streams import CPU_BYTES, tensor_bytes
from recoverrun.worker.step import exact_mode, parameter_checksum
from recoverrun.worker.step.worker_state import WorkerState

BITS = 24
"""Of a digest: votes add up its square."""

UNEQUAL = (
    "{loop}: ranks draw unequally many random numbers of {stream} between one step and the "
    "next ({counts}), and microbatches draw some, too: where a lost rank stands is unknown"
)
APART = "replicas began step {step} with different parameters: a lost one's are gone with it"
OUT_OF_STEP = (
    "{loop}: rank {began} began an iteration with step {step}, rank {other} did not: where "
    "a lost rank stands in its loops is unknown"
)
TORCH = "torch"
MISSING = object()

Matters = Callable[[Key, Any], bool]


class DriftCheck:
    """The things that ranks are known not to have in common, and this rank's values since the last
    vote.
    """

    def __init__(self, worker: WorkerState, captures: Captures, matters: Matters) -> None:
        """`matters` tells of a value whether a microbatch may read it."""
        self._worker = worker
        self._captures = captures
        self._matters = matters
        self.apart: set[Key] = set()
        self.unequal: set[str] = set()  # streams
        self._values: dict[Key, int] = {}
        self._common: frozenset[Key] = frozenset()  # compared in the last vote
        self._drawn: dict[str, int] = {}
        self._weights = 0  # a digest of a sample of parameters
        self._differing = False  # replicas are known to hold other parameters
        self._top: Context | None = None
        self._differ = self._heard = False
        self._nothings: dict[Key, Any] = {}  # with which all ranks have begun

    def begins(self, top: Context) -> None:
        """A transaction begins at `top`: compare this rank with the others."""
        worker = self._worker
        before = [one for one in self._captures.points if one.kind == "after"]
        known = before and before[-1].step == worker.step - 1
        if known and worker.guarantee.exact and not worker.lost:
            protection = worker.protection
            # Trained by all alike, unless some ranks have trained by themselves.
            whole = protection.strategy.whole() if protection.layout.shards == 1 else ()
            self.look(before[-1], top, whole)

    def look(self, before: Context, top: Context, params: Iterable[torch.Tensor]) -> None:
        """A transaction begins at `top`; the one before ended at `before`. Trained `params` are
        the same on all ranks, unless some have trained by themselves.
        """
        self._top = top
        self._weights = 0 if self._differing else parameter_checksum.sample(params)
        self._values = {
            key: _digest(key, value)
            for key, value in _common(top).items()
            if key not in self.apart
            and not is_mark(last(key))
            and not belongs_to_process(last(key))
            and (key[0] == STREAM or self._matters(key, value))
        }
        drawn = _drawn(before, top)
        self._drawn = {name: drawn[name] for name in drawn.keys() - self.unequal}

    def informs(self, lost: LostRank) -> LostRank:
        """Let what is known of all ranks hold for one that is lost."""
        lost.alone, lost.unequal = frozenset(self.apart), frozenset(self.unequal)
        lost.restless = lost.parted & (self._common - self.apart)
        lost.nothings = {**self._nothings, **lost.nothings}
        return lost

    def learn(self, tops: Sequence[Sequence[bytes]]) -> None:
        """All ranks have begun a first microbatch there, in each of the loops around it."""
        for level in zip(*tops, strict=False):
            if all(level):
                contexts = [Context.unpack(packed) for packed in level]
                for key, value in contexts[0].values.items():
                    if is_zero_or_empty(value) and all(
                        same(value, one.values.get(key, MISSING)) for one in contexts
                    ):
                        self._nothings[key] = value

    def learned(self) -> list[object]:
        """The things that ranks do not have in common, for one that takes a lost one's place
        (`learn_all`).
        """
        nothings = [[told(key), pack(value)] for key, value in self._nothings.items()]
        return [sorted(map(told, self.apart), key=str), sorted(self.unequal), nothings,
                sorted(map(told, self._common), key=str), self._differing]  # fmt: skip

    def learn_all(self, learned: list[Any]) -> None:
        """The other ranks have found this before this process began."""
        apart, unequal, nothings, common, self._differing = learned
        self.apart, self.unequal = set(map(key_of, apart)), set(unequal)
        self._nothings = {key_of(key): unpack(value) for key, value in nothings}
        self._common = frozenset(map(key_of, common))

    @property
    def word(self) -> int:
        """The same on all ranks that have gone on alike."""
        crc = (
            self._weights
            + sum(self._values.values())
            + sum(zlib.crc32(f"{name} {count}".encode()) for name, count in self._drawn.items())
        )
        return crc & ((1 << BITS) - 1)

    # --------------------------------------------------------------------------- together

    def hear(self, tally: Tally) -> None:
        """Note the result of the words of all ranks."""
        self._differ, self._heard = not tally.alike, True

    def committed(self) -> bool:
        """The transaction is over; all ranks know whether their words differed. True if more is
        known not to be common to them.
        """
        more = self._differ and not self._worker.lost and self._compare()
        if self._heard and not self._worker.lost:
            self._common = frozenset(self._values)
        self._values, self._drawn, self._top, self._weights = {}, {}, None, 0
        self._differ = self._heard = False
        return more

    def _compare(self) -> bool:
        """True if more values are known not to be common."""
        fabric, vote_group = self._worker.protection.fabric, self._worker.protection.vote_group
        generation = fabric.view.generation  # not later than what the machine knows of losses
        mine = {
            "values": [[told(key), crc] for key, crc in self._values.items()],
            "drawn": self._drawn,
            "draws": self._draws(),
            "weights": self._weights,
            "loop": self._top.loop if self._top is not None else "",
        }
        try:
            heard = gather(fabric, vote_group.channel, generation, mine)
        except Superseded:
            return False  # the ranks will differ again
        more = self._hear_values([one["values"] for one in heard.values()])
        loops = {rank: one["loop"] for rank, one in heard.items()}
        if not all(loops.values()):
            self._hear_loops(loops)
            return more  # what was drawn, and parameters, are known of some ranks alone
        self._hear_weights({rank: one["weights"] for rank, one in heard.items()})
        draws = set[str]().union(*(one["draws"] for one in heard.values()))
        self._hear_drawn({rank: one["drawn"] for rank, one in heard.items()}, draws)
        return more

    def _hear_loops(self, said: Mapping[int, str]) -> None:
        """The loop that each rank began an iteration of with the transaction, "" if it did not."""
        began = next((rank for rank, loop in sorted(said.items()) if loop), None)
        if began is None:
            return
        other = min(rank for rank, loop in said.items() if not loop)
        self._weaken(
            OUT_OF_STEP.format(
                loop=said[began], began=began, other=other, step=self._worker.step - 1
            )
        )

    def _weaken(self, reason: str) -> None:
        """All have heard the same."""
        worker = self._worker
        worker.guarantee.weaken(reason)
        exact_mode.end_if_unserved(worker, "equal-count", reason)

    def _hear_values(self, said: list[list[list[Any]]]) -> bool:
        """True if more values are known not to be common."""
        more = False
        known = [{key_of(key): crc for key, crc in values} for values in said]
        for key in set[Key]().union(*known):
            if len({values.get(key) for values in known}) > 1:
                self.apart.add(key)
                more = True
        return more

    def _hear_weights(self, said: Mapping[int, int]) -> None:
        if len(set(said.values())) == 1:
            return
        self._differing = True
        self._weaken(APART.format(step=self._worker.step - 1))

    def _hear_drawn(self, said: Mapping[int, Mapping[str, int]], draws: set[str]) -> None:
        """`draws` are streams of which some rank's microbatch draws numbers."""
        for stream in sorted(set[str]().union(*said.values())):
            counts = {rank: drawn.get(stream, 0) for rank, drawn in sorted(said.items())}
            if len(set(counts.values())) == 1:
                continue
            self.unequal.add(stream)
            if stream not in draws:
                continue
            words = ", ".join(f"{count} on rank {rank}" for rank, count in _few(counts))
            plain = stream == TORCH or stream.startswith("cuda")
            name = stream if plain else f"the generator made at {stream}"
            loop = self._top.loop if self._top is not None else "the loop"
            self._weaken(UNEQUAL.format(loop=loop, stream=name, counts=words))

    def _draws(self) -> list[str]:
        """Streams from which the microbatch drew that began at the last top."""
        if self._top is None:
            return []
        after = [one for one in self._captures.points if one.kind == "after"]
        ended = next((one for one in after if one.point > self._top.point), None)
        return [] if ended is None else sorted(_drawn(self._top, ended, any_at_all=True))


def _few(counts: Mapping[int, int]) -> list[tuple[int, int]]:
    """One rank for each count, the first four."""
    found: dict[int, int] = {}
    for rank, count in counts.items():
        found.setdefault(count, rank)
    return [(rank, count) for count, rank in found.items()][:4]


def _common(top: Context) -> dict[Key, Any]:
    """Values, and generators of which nobody counts the numbers."""
    streams: dict[Key, Any] = {host(name): state for name, state in top.streams.hosts.items()}
    kept: dict[Key, Any] = {
        (STREAM, place): state
        for place, state in top.generators.items()
        if not isinstance(state, torch.Tensor)
    }
    return {**top.values, **streams, **kept}


def _drawn(before: Context, after: Context, *, any_at_all: bool = False) -> dict[str, int]:
    """The count of numbers drawn of the streams that have moved, -1 where that is not counted; of
    torch's, without those that this rank alone draws.
    """
    found: dict[str, int] = {}
    began, ended = before.streams, after.streams
    if began.torch_cpu != ended.torch_cpu:
        count = draws_between(began.torch_cpu, ended.torch_cpu)
        private = ended.private[0] - began.private[0]
        found[TORCH] = -1 if count is None else count - private
    cuda = zip(
        began.torch_cuda, ended.torch_cuda, began.private[1:], ended.private[1:], strict=False
    )
    for number, (one, other, was, now) in enumerate(cuda):
        if one != other:
            count = philox_offset(other) - philox_offset(one) - (now - was)
            found[f"cuda{number}"] = count if one[:8] == other[:8] else -1
    for place, state in after.generators.items():
        old = before.generators.get(place)
        if isinstance(state, torch.Tensor) and isinstance(old, torch.Tensor):
            then, present = tensor_bytes(old), tensor_bytes(state)
            if then != present:
                drawn = draws_between(then, present) if len(then) == CPU_BYTES else None
                found[place] = -1 if drawn is None else drawn
    return found if any_at_all else {name: count for name, count in found.items() if count}


def _digest(key: Key, value: Any) -> int:
    return zlib.crc32(bits(value), zlib.crc32(str(key).encode(errors="replace")))
