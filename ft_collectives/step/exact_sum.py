"""Sums that are equal bit for bit, whichever replicas computed their parts (`--exact`).

Floating point addition is not associative, so a sum depends on the tree of its additions. Here that
tree depends on the job alone: its R slots and G microbatches. The gradients of a slot are added in
the order of their index, ((g0 + g1) + g2) + ..., as its home rank accumulates them. Then the sums
of the slots are added, in the order of slots, onto +0.0; that also makes one zero of +0.0 and -0.0,
since a script may begin with zeroed gradients or with none.

A replica adds up the first microbatches of a slot and hands over the others one by one: these are
its *partial sums*. All members know the plan of the generation, and so each other's partial sums,
without a message. Each member receives its part of every bucket from all (an all-to-all), adds it
up, and gives the result to all (an all-gather): a reduce-scatter and an all-gather, as in
Rabenseifner's algorithm (Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
Operations in MPICH", 2005), with the order of additions fixed. Without a loss each
replica has one partial sum, and as many bytes move as in a ring. After a loss, each microbatch that
does not continue what its replica has of the slot is one partial sum more.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ft_collectives.communicators.c10d import Gloo, Work, options
from ft_collectives.communicators.channel import Channel, Communicator, Pending
from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.fabric import Fabric
from rendezvous.protocol.views import Identity

Shares = Mapping[int, Sequence[Identity]]
"""The identities that each live slot's replica computes of a step, by slot."""

Fill = Callable[[torch.Tensor], None]
"""Copies this rank's own accumulator of a bucket to the tensor that it gets."""


@dataclass(frozen=True, slots=True, order=True)
class PartialSum:
    """The gradients of (slot, start) to (slot, stop - 1), added from the left."""

    slot: int
    start: int
    stop: int


def partial_sums(held: Iterable[Identity]) -> tuple[PartialSum, ...]:
    """Return the partial sums of a replica that has computed `held`.

    The first microbatches of each slot are one of them, every other microbatch is one by itself.
    """
    found: list[PartialSum] = []
    for slot, index in sorted(held):
        head = bool(found) and (found[-1].slot, found[-1].start) == (slot, 0)
        if head and found[-1].stop == index:
            found[-1] = PartialSum(slot, 0, index + 1)
        else:
            found.append(PartialSum(slot, index, index + 1))
    return tuple(found)


def addition_order(having: Sequence[Sequence[PartialSum]]) -> tuple[tuple[PartialSum, int], ...]:
    """Return all partial sums in the order of their addition, each with its place.

    `having` are those of each member; a place counts through the first member's, then those of the
    second, and so on. Fails (INV-1) if a microbatch is missing or twice.
    """
    places = [partial for one in having for partial in one]
    ordered = tuple(sorted((partial, place) for place, partial in enumerate(places)))
    last = PartialSum(-1, 0, 0)
    for partial, _ in ordered:
        begins = last.stop if partial.slot == last.slot else 0
        assert partial.start == begins, f"INV-1: {partial} follows {last}"
        last = partial
    return ordered


def fold(total: torch.Tensor, rows: Sequence[torch.Tensor], order: Sequence[PartialSum]) -> None:
    """Write the sum of `rows`, the partial sums in `order`, to `total`. Overwrites rows."""
    total.zero_()
    of_slot: torch.Tensor | None = None
    slot = -1
    for partial, row in zip(order, rows, strict=True):
        if of_slot is not None and partial.slot == slot:
            of_slot += row
            continue
        if of_slot is not None:
            total += of_slot
        of_slot, slot = row, partial.slot
    if of_slot is not None:
        total += of_slot


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The additions of a step in one generation, for one member."""

    counts: tuple[int, ...]  # how many partial sums each member has
    mine: tuple[PartialSum, ...]
    order: tuple[PartialSum, ...]  # of the addition
    places: tuple[int, ...]  # of each of `order` among the partial sums of all members

    @staticmethod
    def of(having: Sequence[Sequence[PartialSum]], place: int) -> "Plan":
        ordered = addition_order(having)
        return Plan(
            counts=tuple(len(one) for one in having), mine=tuple(having[place]),
            order=tuple(partial for partial, _ in ordered), places=tuple(at for _, at in ordered),
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class BucketTransfer:
    """The memory of one bucket under way. `whole` has one part for each member."""

    plan: Plan
    whole: torch.Tensor
    sent: torch.Tensor
    received: torch.Tensor
    part: torch.Tensor

    @staticmethod
    def of(plan: Plan, size: int, dtype: torch.dtype) -> "BucketTransfer":
        members = len(plan.counts)
        width = -(-size // members)

        def room(parts: int) -> torch.Tensor:
            return torch.empty(parts * width, dtype=dtype)

        whole = room(members)
        sent = whole if len(plan.mine) == 1 else room(len(plan.mine) * members)
        return BucketTransfer(plan, whole, sent, room(len(plan.order)), room(1))

    @property
    def memory(self) -> list[torch.Tensor]:
        """The tensors that gloo may read or write."""
        return [self.whole, self.sent, self.received, self.part]

    def exchange(self, group: Gloo) -> Work:
        """Send every member its part of our partial sums. Theirs arrive in the order of members."""
        width = self.part.numel()
        arriving = [count * width for count in self.plan.counts]
        leaving = [len(self.plan.mine) * width] * len(self.plan.counts)
        how = options("AllToAllOptions")
        return group.alltoall_base(self.received, self.sent, arriving, leaving, how)

    def gather_sums(self, group: Gloo) -> Work:
        """Give this member's part of the sum to all."""
        return group._allgather_base(self.whole, self.part, options("AllgatherOptions"))

    def add_up(self, source: torch.Tensor) -> None:
        """Add up this rank's part of all partial sums, which lie in `source`."""
        rows = source.view(len(self.plan.order), -1)
        fold(self.part, [rows[place] for place in self.plan.places], self.plan.order)


class ExactSum:
    """The sums of this rank's buckets over `channel`, whose ranks are in the order of slots.

    `shares(generation)` returns the plan of the step, or None once that generation is over.
    """

    def __init__(
        self, fabric: Fabric, channel: Channel, shares: Callable[[int], Shares | None]
    ) -> None:
        self._fabric = fabric
        self._channel = channel
        self._shares = shares
        self._own = channel.ranks.index(fabric.rank)
        self._apart: dict[PartialSum, dict[Hashable, torch.Tensor]] = {}
        self._transfers: dict[Hashable, BucketTransfer] = {}
        self._planned: tuple[Communicator, Shares, Plan] | None = None

    # --------------------------------------------------------------------------- other slots' parts

    def begin_step(self) -> None:
        """Drop what was kept of the step before."""
        self._apart.clear()

    def add(self, identity: Identity, gradient: dict[Hashable, torch.Tensor]) -> None:
        """Keep another slot's gradient, by bucket; it joins the slot's first ones if it is next."""
        slot, index = identity
        self._apart[PartialSum(slot, index, index + 1)] = gradient
        head = next((t for t in self._apart if (t.slot, t.start) == (slot, 0)), None)
        while head is not None:
            following = self._apart.pop(PartialSum(slot, head.stop, head.stop + 1), None)
            if following is None:
                return
            sums = self._apart.pop(head)
            for key, value in following.items():
                sums[key] += value
            head = PartialSum(slot, 0, head.stop + 1)
            self._apart[head] = sums

    # --------------------------------------------------------------------------- the exchange

    def start(
        self, key: Hashable, generation: int, *, size: int, dtype: torch.dtype, fill: Fill
    ) -> tuple[torch.Tensor, Pending]:
        """Begin to send every member its part of a bucket of `size` elements.

        Return the tensor that will hold the sum. Raises Superseded if `generation` is over.
        """
        with self._fabric.changed:
            now, shares = self._channel.now, self._shares(generation)
        if shares is None or now.generation != generation:
            raise Superseded
        plan = self._plan(now, shares)
        transfer = self._transfers.get(key)
        if transfer is None or transfer.plan is not plan or transfer.whole.dtype != dtype:
            transfer = self._transfers[key] = BucketTransfer.of(plan, size, dtype)
        staging = transfer.whole[:size]
        fill(staging)
        transfer.whole[size:].zero_()
        if len(plan.mine) > 1:
            self._lay_out(transfer, key)
        if now.group is None:
            transfer.add_up(transfer.sent)
            transfer.whole.copy_(transfer.part)
            return staging, Pending()
        return staging, self._fabric.launch(self._channel, generation, transfer.exchange)

    def complete(self, key: Hashable, generation: int) -> Pending:
        """Add up the parts of the bucket, which have arrived, and begin to give the sum to all."""
        transfer = self._transfers[key]
        if len(transfer.plan.counts) == 1:
            return Pending()
        transfer.add_up(transfer.received)
        return self._fabric.launch(self._channel, generation, transfer.gather_sums)

    def let_go(self, key: Hashable) -> list[torch.Tensor]:
        """Use other memory for this bucket from now on; return what gloo may still use."""
        transfer = self._transfers.pop(key, None)
        return transfer.memory if transfer is not None else []

    def forget(self) -> None:
        """Drop all buckets: gradients are divided in another way from now on."""
        self._transfers.clear()

    # --------------------------------------------------------------------------- the plan

    def _plan(self, now: Communicator, shares: Shares) -> Plan:
        """Return the plan, which is made once for all buckets and steps with these shares."""
        known = self._planned
        if known is not None and known[0] is now and known[1] == shares:
            return known[2]
        having = [partial_sums(shares[self._channel.ranks.index(rank)]) for rank in now.members]
        plan = Plan.of(having, now.position(self._fabric.rank))
        self._planned = (now, shares, plan)
        return plan

    def _lay_out(self, transfer: BucketTransfer, key: Hashable) -> None:
        """Lay out what is sent: for each member, its part of all our partial sums together."""
        mine, members = transfer.plan.mine, len(transfer.plan.counts)
        rows = transfer.sent.view(members, len(mine), -1)
        for number, partial in enumerate(mine):
            row = transfer.whole
            if partial.slot != self._own:
                row = transfer.whole.new_zeros(transfer.whole.numel())
                gradient = self._apart[partial][key]
                row[: gradient.numel()] = gradient
            rows[:, number] = row.view(members, -1)
