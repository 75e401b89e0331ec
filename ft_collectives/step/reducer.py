"""Gradient buckets that can be reduced again: kept accumulators, staging copies, one fixed order.

The un-reduced accumulator of every bucket is kept until the step commits, and a copy of it is
all-reduced. A loss in the middle therefore leaves nothing half done: the copy is left behind, and a
fresh one is reduced among the members of the next generation (docs/recovery.md, "A step is a
transaction"). A bucket may start while backward still runs (`offer`), so that communication
overlaps computation, as in DDP (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3). All
members start buckets in one order, because gloo matches the operations of a communicator by their
order and ends the process where sizes differ.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch

from ft_collectives.communicators.c10d import Gloo, ReduceOp, Work, options
from ft_collectives.communicators.channel import Channel, Pending
from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.step.exact_sum import ExactSum
from rendezvous.protocol.views import Identity


@dataclass(slots=True, eq=False)
class Bucket:
    """One unit of reduction: `size` elements of `dtype`, in one dimension.

    `fill(staging)` copies this rank's sum to `staging`. `deliver(total)` gives the sum over all B
    microbatches to the parameters, with the divisor of the failure-free run (INV-8).
    `carry(staging)` copies what the gradients held before the transaction, where torch reduces
    that, too; it returns False if they held nothing. The last `apart` elements are no gradients and
    have an operation of their own: gloo adds up an element in an order that depends on how many
    there are, and gradients are added up as torch would. With `keeps` the gradients become views of
    `total`: the next transaction reduces in other memory.
    """

    key: Hashable
    size: int
    dtype: torch.dtype
    fill: Callable[[torch.Tensor], None]
    deliver: Callable[[torch.Tensor], None]
    carry: Callable[[torch.Tensor], bool] = lambda staging: False
    keeps: bool = False
    apart: int = 0
    device: torch.device | str = "cpu"  # of what is reduced, not of the gradients
    staging: torch.Tensor | None = None
    pendings: list[Pending] = field(default_factory=list)
    generation: int = 0  # of `pendings`

    def parts(self) -> list[torch.Tensor]:
        """The staging memory of each operation."""
        assert self.staging is not None, f"bucket {self.key} has none"
        own = self.size - self.apart
        return [self.staging[:own], self.staging[own:]] if self.apart else [self.staging]


Piece = dict[Hashable, torch.Tensor]
"""The gradient of one microbatch, by bucket."""


class Reducer:
    """The buckets of this rank, reduced over `channel`, the replicate group of its shard.

    A transaction reduces the buckets that are included in it, in the order of inclusion.
    """

    def __init__(
        self,
        fabric: Fabric,
        channel: Channel,
        *,
        on_launch: Callable[[int, int], None] = lambda number, total: None,
        exact_sum: ExactSum | None = None,
    ) -> None:
        """`on_launch(number, total)` is called for each bucket that is launched.

        `exact_sum`, if it is given, adds up in the place of an all-reduce.
        """
        self.fabric = fabric
        self.channel = channel
        self._begin = fabric.launch
        if channel.over is not None:
            self._begin = partial(channel.over.launch, fabric.serving)
        self.buckets: dict[Hashable, Bucket] = {}
        self.order: list[Hashable] = []
        self._on_launch = on_launch
        self.exact_sum = exact_sum
        self._extra: Piece = {}  # what this rank has made up, without `exact_sum`
        self._launched = 0
        self._launched_in = 0
        self._final: set[Hashable] = set()
        self._final_in = 0  # an accumulator that was final may have to take more after a loss
        self._held_in = 0  # the generation in which every bucket of this step was reduced
        self._sum = options("AllreduceOptions", reduceOp=ReduceOp.SUM)

    def register(self, bucket: Bucket) -> Bucket:
        """Add a bucket, or replace the one of the same key."""
        known = self.buckets.get(bucket.key)
        if known is not None and (known.size, known.dtype) == (bucket.size, bucket.dtype):
            bucket.staging = known.staging
            bucket.pendings, bucket.generation = known.pendings, known.generation
        self.buckets[bucket.key] = bucket
        return bucket

    def include(self, keys: Iterable[Hashable]) -> None:
        """Add `keys` to this transaction, after those that are in it."""
        self.order += [key for key in keys if key not in self.order]

    def forget(self) -> None:
        """Drop all buckets: gradients are divided in another way from now on."""
        self.buckets.clear()
        if self.exact_sum is not None:
            self.exact_sum.forget()
        self.begin()

    def begin(self) -> None:
        """Begin a new transaction: nothing of it is included or launched."""
        if self.exact_sum is not None:
            self.exact_sum.begin_step()
        self._launched = self._launched_in = 0
        self._final_in = self._held_in = 0
        self._final.clear()
        self._extra.clear()
        self.order = []
        for bucket in self.buckets.values():
            self._abandon(bucket)
            bucket.generation = 0

    def piece(self, carried: bool) -> Piece:
        """Return what the accumulators hold, and with `carried` what they held before as well."""
        piece: Piece = {}
        for key in self.order:
            bucket = self.buckets[key]
            piece[key] = torch.empty(bucket.size, dtype=bucket.dtype, device=bucket.device)
            bucket.fill(piece[key])
            before = torch.zeros_like(piece[key]) if carried else None
            if before is not None and bucket.carry(before):
                piece[key] += before
        return piece

    def carries(self) -> bool:
        """True if the accumulators held something else than zeros before this transaction."""
        for key in self.order:
            bucket = self.buckets[key]
            before = torch.zeros(bucket.size, dtype=bucket.dtype, device=bucket.device)
            if bucket.carry(before) and bool(before.any()):
                return True
        return False

    def share(self, parts: int, carried: bool) -> Piece:
        """Return this rank's own gradient divided by `parts` (`carried` as in `piece`)."""
        piece = self.piece(carried=False)
        for key, own in piece.items():
            before = torch.zeros_like(own)
            held = self.buckets[key].carry(before)  # else they are zeros
            own.sub_(before).div_(parts)
            if held and carried:
                own.add_(before)
        return piece

    def add(self, identity: Identity, piece: Piece) -> None:
        """Add another slot's microbatch to what this rank contributes."""
        if self.exact_sum is not None:
            self.exact_sum.add(identity, piece)
            return
        for key, gradient in piece.items():
            known = self._extra.get(key)
            self._extra[key] = gradient if known is None else known.add_(gradient)

    def offer(self, key: Hashable, generation: int) -> None:
        """The accumulator of `key` is final, by the plan of `generation`.

        Its reduction starts once all buckets before it have started.
        """
        self.include([key])
        if self._final_in != generation:
            self._final.clear()
            self._final_in = generation
        self._final.add(key)
        if self._launched_in not in (0, generation):
            return
        ready = self._launched
        while ready < len(self.order) and self.order[ready] in self._final:
            ready += 1
        if ready == self._launched or self.channel.generation != generation:
            return
        try:
            self._launch_up_to(ready, generation)
        except Superseded:
            return  # the end of the backward will see the new generation

    def finish(self, generation: int) -> None:
        """Reduce all included buckets in `generation` and wait.

        Raises Superseded if the generation ends first, and TimedOut.
        """
        if self.fabric.ready(self.channel) != generation:
            raise Superseded
        self._launch_up_to(len(self.order), generation)
        pendings = [pending for bucket in self._present() for pending in bucket.pendings]
        if self.exact_sum is None:
            self.fabric.finish(pendings, generation)
        else:
            self._finish(self.exact_sum, generation)
        self._held_in = generation

    def _present(self) -> list[Bucket]:
        return [self.buckets[key] for key in self.order]

    def _finish(self, exact_sum: ExactSum, generation: int) -> None:
        """Wait for both halves of every bucket; all members start second halves in one order."""
        for bucket in self._present():
            assert bucket.pendings, f"bucket {bucket.key} was just launched"
            self.fabric.finish(bucket.pendings, generation)
            bucket.pendings = [exact_sum.complete(bucket.key, generation)]
        pendings = [pending for bucket in self._present() for pending in bucket.pendings]
        self.fabric.finish(pendings, generation)

    def deliver(self) -> None:
        """Write the sums of the step, which is committed, to the parameters' gradients."""
        assert self._held_in == self._launched_in or not self.order, (
            f"INV-5: held in generation {self._held_in}, since then launched in {self._launched_in}"
        )
        for bucket in self._present():
            assert bucket.staging is not None, f"bucket {bucket.key} was never reduced"
            bucket.deliver(bucket.staging)
            if bucket.keeps:
                bucket.staging = None
                if self.exact_sum is not None:
                    self.exact_sum.let_go(bucket.key)

    def _launch_up_to(self, count: int, generation: int) -> None:
        if self._launched_in != generation:
            self._launched, self._launched_in = 0, generation
        for bucket in self._present()[self._launched : count]:
            self._launch(bucket, generation)
            self._launched += 1
            self._on_launch(self._launched - 1, len(self.order))

    def _launch(self, bucket: Bucket, generation: int) -> None:
        self._abandon(bucket)
        if self.exact_sum is not None:
            bucket.staging, pending = self.exact_sum.start(
                bucket.key, generation, size=bucket.size, dtype=bucket.dtype, fill=bucket.fill
            )
            bucket.pendings, bucket.generation = [pending], generation
            return
        if bucket.staging is None:
            bucket.staging = torch.empty(bucket.size, dtype=bucket.dtype, device=bucket.device)
        bucket.fill(bucket.staging)
        extra = self._extra.get(bucket.key)
        if extra is not None:
            bucket.staging += extra
        for part in bucket.parts():
            start = partial(self._allreduce, part)
            bucket.pendings.append(self._begin(self.channel, generation, start))
        bucket.generation = generation

    def _allreduce(self, part: torch.Tensor, group: Gloo) -> Work:
        return group.allreduce([part], self._sum)

    def _abandon(self, bucket: Bucket) -> None:
        """Leave a reduction under way behind, with the memory that it may still write."""
        under_way, bucket.pendings = bucket.pendings, []
        if bucket.staging is None or all(pending.done for pending in under_way):
            return
        if self.exact_sum is not None:
            self.fabric.memory.hold(self.exact_sum.let_go(bucket.key), under_way[0])
        else:
            for pending, part in zip(under_way, bucket.parts(), strict=False):  # some never began
                self.fabric.memory.hold([part], pending)
        bucket.staging = None
