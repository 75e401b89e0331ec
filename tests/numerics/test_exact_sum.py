"""The order of addition behind `--exact`: the same bits, whoever computed what, and however late.

Members are objects in this process; a hub moves what they exchange, as gloo would.
"""

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from ft_collectives.communicators.channel import Channel, Communicator, Pending
from ft_collectives.communicators.errors import Superseded
from ft_collectives.step.exact_sum import (
    ExactSum,
    PartialSum,
    Shares,
    addition_order,
    fold,
    partial_sums,
)
from rendezvous.protocol.quota import identities, share_out, standing_shares
from rendezvous.protocol.views import Identity

SIZE = 11  # of a bucket: divides by no number of members


def gradients(slots: int, microbatches: int, seed: int) -> dict[Identity, torch.Tensor]:
    """Of magnitudes so different that hardly two orders of addition agree."""
    rng = torch.Generator().manual_seed(seed)
    scales = 10.0 ** torch.randint(-4, 5, (slots * microbatches, SIZE), generator=rng)
    values = torch.randn(slots * microbatches, SIZE, generator=rng) * scales
    return dict(zip(identities(range(slots), microbatches), values, strict=True))


def expected(of: dict[Identity, torch.Tensor], slots: int, microbatches: int) -> torch.Tensor:
    """The sum of the failure-free run, written down once more."""
    total = torch.zeros(SIZE)
    for slot in range(slots):
        of_slot = of[slot, 0].clone()
        for index in range(1, microbatches):
            of_slot = of_slot + of[slot, index]
        total = total + of_slot
    return total


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.view(torch.int32).tolist() == other.view(torch.int32).tolist()


# ----------------------------------------------------------------------------------- pure parts


def test_the_head_of_a_slot_is_one_term_and_the_rest_are_single() -> None:
    held = [(2, 3), (1, 0), (1, 1), (2, 0), (2, 1), (3, 1), (3, 2)]

    assert partial_sums(held) == (
        PartialSum(1, 0, 2),
        PartialSum(2, 0, 2),
        PartialSum(2, 3, 4),
        PartialSum(3, 1, 2),
        PartialSum(3, 2, 3),
    )


def test_terms_are_added_by_slot_and_index_whoever_has_them() -> None:
    having = [
        [PartialSum(1, 0, 2), PartialSum(0, 1, 2)],
        [PartialSum(2, 0, 2), PartialSum(0, 0, 1)],
    ]

    assert addition_order(having) == (
        (PartialSum(0, 0, 1), 3),
        (PartialSum(0, 1, 2), 1),
        (PartialSum(1, 0, 2), 0),
        (PartialSum(2, 0, 2), 2),
    )


@pytest.mark.parametrize(
    "having",
    [
        [[PartialSum(0, 0, 1)], [PartialSum(0, 0, 1)]],
        [[PartialSum(0, 0, 1)], [PartialSum(0, 2, 3)]],
        [[PartialSum(0, 1, 2)]],
    ],
    ids=["twice", "a gap", "no head"],
)
def test_a_microbatch_that_is_twice_or_never_there_is_no_order(
    having: list[list[PartialSum]],
) -> None:
    with pytest.raises(AssertionError, match="INV-1"):
        addition_order(having)


def test_both_zeros_become_one() -> None:
    total = torch.empty(2)

    fold(total, [torch.tensor([-0.0, 0.0]), torch.tensor([-0.0, -0.0])], [PartialSum(0, 0, 1)] * 2)

    assert same_bits(total, torch.tensor([0.0, 0.0]))


# ----------------------------------------------------------------------------------- all of it


@dataclass
class Hub:
    """Stands in for fabric and gloo of all members; moves data once all have begun."""

    calls: dict[int, tuple[str, Any]] = field(default_factory=dict)

    def call(self, rank: int, kind: str, *arguments: Any) -> None:
        self.calls[rank] = (kind, arguments)

    def move(self, members: Sequence[int]) -> None:
        kinds = {kind for kind, _ in self.calls.values()}
        assert len(kinds) == 1 and sorted(self.calls) == list(members)
        given = {rank: arguments for rank, (_, arguments) in self.calls.items()}
        for place, rank in enumerate(members):
            if kinds == {"alltoall"}:
                received, _, arriving, _, _ = given[rank]
                parts = [given[m][1].split(given[m][3])[place] for m in members]
                assert [len(part) for part in parts] == arriving
                received.copy_(torch.cat(parts))
            else:
                whole, _, _ = given[rank]
                whole.copy_(torch.cat([given[m][1] for m in members]))
        self.calls.clear()


class Group:
    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank = hub, rank

    def alltoall_base(self, *arguments: Any) -> None:
        self.hub.call(self.rank, "alltoall", *arguments)

    def _allgather_base(self, *arguments: Any) -> None:
        self.hub.call(self.rank, "allgather", *arguments)


class Loom:
    """A stand-in for the fabric that `ExactSum` asks."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.changed = threading.Condition()

    def launch(self, channel: Channel, generation: int, start: Callable[[Any], Any]) -> Pending:
        if channel.generation != generation:
            raise Superseded
        start(channel.group)
        return Pending()


class Job:
    """All members of a replicate group; `rank` is also the slot."""

    def __init__(self, slots: int, of: dict[Identity, torch.Tensor]) -> None:
        self.hub = Hub()
        self.of = of
        self.shares: Shares = {}
        self.channels = {r: Channel("gradients", tuple(range(slots))) for r in range(slots)}
        self.sums = {
            rank: ExactSum(Loom(rank), channel, lambda _: self.shares)  # type: ignore[arg-type]
            for rank, channel in self.channels.items()
        }

    def reduce(self, shares: Shares, generation: int) -> dict[int, torch.Tensor]:
        self.shares = shares
        members = sorted(shares)
        stagings = {}
        for rank in members:
            group = Group(self.hub, rank) if len(members) > 1 else None
            now = Communicator(generation, tuple(members), group)
            if self.channels[rank].generation != generation:
                self.channels[rank].now = now
            stagings[rank], _ = self.sums[rank].start(
                "bucket", generation, size=SIZE, dtype=torch.float32, fill=self._own(rank)
            )
        for half in range(2 if len(members) > 1 else 0):
            self.hub.move(members)
            for rank in members if half == 0 else []:
                self.sums[rank].complete("bucket", generation)
        return stagings

    def _own(self, rank: int) -> Callable[[torch.Tensor], None]:
        def fill(staging: torch.Tensor) -> None:
            own = [self.of[identity] for identity in sorted(self.of) if identity[0] == rank]
            staging.copy_(own[0])
            for one in own[1:]:
                staging.add_(one)

        return fill

    def compute(self, rank: int, extra: Sequence[Identity]) -> None:
        for identity in extra:
            self.sums[rank].add(identity, {"bucket": self.of[identity].clone()})


SHAPES = [(r, g) for r in (2, 3, 4, 6) for g in (1, 2, 3, 5)]


@pytest.mark.parametrize(("slots", "microbatches"), SHAPES)
def test_any_loss_gives_the_bits_of_none(slots: int, microbatches: int) -> None:
    of = gradients(slots, microbatches, seed=slots * 10 + microbatches)
    want = expected(of, slots, microbatches)
    everybody = tuple(range(slots))
    for left in range(1, slots + 1):
        for live in itertools.combinations(everybody, left):
            job = Job(slots, of)
            shares = standing_shares(live, everybody, microbatches)
            for rank in live:
                job.compute(rank, [i for i in shares[rank] if i[0] != rank])

            for total in job.reduce(shares, 1).values():
                assert same_bits(total, want)


@pytest.mark.parametrize("seed", range(60))
def test_losses_one_after_another_give_the_bits_of_none(seed: int) -> None:
    """Survivors lose others while they make up for the first, and compute in any order."""
    rng = random.Random(seed)
    slots, microbatches = rng.randint(2, 6), rng.randint(1, 5)
    of = gradients(slots, microbatches, seed)
    job = Job(slots, of)
    live = list(range(slots))
    held: dict[int, list[Identity]] = {r: list(identities((r,), microbatches)) for r in live}
    if rng.random() < 0.5:
        job.reduce(held, 1)  # a reduction that nobody will use
    generation = 1
    while len(live) > 1 and rng.random() < 0.8:
        generation += 1
        live.remove(rng.choice(live))
        missing = set(of) - {i for r in live for i in held[r]}
        extra = share_out(missing, {r: len(held[r]) for r in live})
        for rank in live:
            todo = list(extra[rank])
            rng.shuffle(todo)
            done = todo if rng.random() < 0.5 else todo[: rng.randint(0, len(todo))]
            job.compute(rank, done)
            held[rank] += done
    missing = set(of) - {i for r in live for i in held[r]}
    for rank, todo in share_out(missing, {r: len(held[r]) for r in live}).items():
        job.compute(rank, todo)
        held[rank] += todo

    for total in job.reduce({r: held[r] for r in live}, generation + 1).values():
        assert same_bits(total, expected(of, slots, microbatches))


def test_another_order_would_have_given_other_bits() -> None:
    """These gradients can tell: else nothing above would prove anything."""
    of = gradients(4, 3, seed=0)
    names = list(of)
    random.Random(0).shuffle(names)

    assert not same_bits(sum((of[n] for n in names), torch.zeros(SIZE)), expected(of, 4, 3))


def test_memory_serves_many_steps_and_a_new_step_forgets_what_was_kept_apart() -> None:
    of = gradients(3, 2, seed=1)
    job = Job(3, of)
    shares = standing_shares((0, 2), (0, 1, 2), 2)
    pointers = set()
    for _ in range(5):
        for rank in (0, 2):
            job.sums[rank].begin_step()
            job.compute(rank, [i for i in shares[rank] if i[0] == 1])
        totals = job.reduce(shares, 1)
        pointers.add(tuple(total.data_ptr() for total in totals.values()))

        assert all(same_bits(total, expected(of, 3, 2)) for total in totals.values())
    assert len(pointers) == 1


def test_memory_that_was_let_go_is_not_used_again() -> None:
    job = Job(2, gradients(2, 1, seed=2))
    shares = standing_shares((0, 1), (0, 1), 1)
    first = job.reduce(shares, 1)[0]

    left = job.sums[0].let_go("bucket")
    second = job.reduce(shares, 1)[0]

    assert any(one.data_ptr() == first.data_ptr() for one in left)
    assert second.data_ptr() != first.data_ptr()


def test_a_generation_that_is_over_starts_nothing() -> None:
    job = Job(2, gradients(2, 1, seed=3))
    job.reduce(standing_shares((0, 1), (0, 1), 1), 2)

    with pytest.raises(Superseded):
        job.sums[0].start("bucket", 1, size=SIZE, dtype=torch.float32, fill=lambda _: None)
    job.sums[0]._shares = lambda generation: None
    with pytest.raises(Superseded):
        job.sums[0].start("bucket", 2, size=SIZE, dtype=torch.float32, fill=lambda _: None)
