"""Buffers of a DDP module, which all ranks take over from its first rank as a forward begins.

So torch has it (`DistributedDataParallel._sync_buffers`): running means, code books and the like go
on from rank 0's microbatches. A microbatch that is executed again begins with what its own forward
had taken over. Once rank 0 is lost, whoever executes all of its microbatches of a transaction has
its buffers at the end of that: the next forward takes them over from there.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from recoverrun.worker.step.forward_sync import Buffers, ForwardSync, Values
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.strategies.changed_buffers import ChangedBuffers, copied, version

SMALL_BYTES = 1 << 20
"""A larger buffer is kept if its version says that it moves. That of a running mean does not."""

KEPT = 16
"""Of the latest forwards: a microbatch may have several."""


class LeadingBuffers:
    """The buffers of one DDP module."""

    def __init__(self, worker: WorkerState, ranks: Sequence[int], number: int) -> None:
        """`ranks` are those of its group, `number` tells the module from others."""
        self._worker = worker
        self.number = number
        self._ranks = list(ranks)
        self.count = 0  # of the times that they were taken over
        self.holder: int | None = None  # the rank that has a lost first rank's, if known
        self.held: Values | None = None  # these, until they are taken over
        self._since = 0  # `count` as the transaction began
        self._taken: deque[Values] = deque(maxlen=KEPT)
        self._many = -1
        self._resting: dict[int, int] = {}  # versions of large ones that do not move, by place
        self._next = -1  # in an execution: the number of its next forward
        self._acting = -1  # the rank whose microbatch is executed
        self._known = False  # its buffers are what they are there
        self._before: Values | None = None  # with these it begins

    @cached_property
    def _changes(self) -> ChangedBuffers:
        return ChangedBuffers(self.first, self._worker.guarantee.weaken)

    @property
    def first(self) -> int:
        """The rank from which torch takes them over."""
        return self._ranks[0]

    @property
    def _leading(self) -> int:
        """The rank from which all take them over now."""
        return self.first if self.holder is None else self.holder

    # --------------------------------------------------------------------------- own forwards

    @contextmanager
    def led(self, module: DistributedDataParallel) -> Iterator[None]:
        """The block in which a forward takes them over, from their holder if that is another one
        than torch thinks.
        """
        changed = self._changes.since(_of(module) if self._is_lost() else module.modules_buffers)
        if self.holder is None:
            yield
        else:
            if self.holder == self._worker.env.rank:
                self._put(module, self._changes.put_in(changed, self.held or {}))
            self.held = None
            at, own = self._ranks.index(self.holder), vars(module)
            original: Callable[[int], None] = module._sync_module_buffers
            own["_sync_module_buffers"] = lambda _: original(at)
            try:
                yield
            finally:
                del own["_sync_module_buffers"]
        self._put(module, self._changes.put_in(changed, self._left_by(self._leading)))
        self._note(module.modules_buffers)

    def _is_lost(self) -> bool:
        """True if the first rank is lost, as far as is known."""
        view = self._worker.view
        return view is not None and self.first not in view.live_ranks

    def _left_by(self, rank: int) -> Values:
        """Those that `rank` left, if it is lost since the last transaction and nobody has taken
        them over since.
        """
        worker = self._worker
        view = worker.view
        if not self.rests or not worker.protected or view is None or rank in view.live_ranks:
            return {}
        return worker.left_buffers.of(rank, worker.step - 1).get(self.number, {})

    def _note(self, buffers: Sequence[Tensor]) -> None:
        """They are as all ranks have them now."""
        if len(buffers) != self._many:
            self._many = len(buffers)
            versions = {at: version(one) for at, one in enumerate(buffers)}
            large = {at for at, one in enumerate(buffers) if one.nbytes > SMALL_BYTES}
            self._resting = {at: versions[at] for at in sorted(large)}
        for at, was in list(self._resting.items()):
            if version(buffers[at]) != was:
                del self._resting[at]
        now = {at: one for at, one in enumerate(buffers) if at not in self._resting}
        oldest = self._taken[0] if len(self._taken) == KEPT else {}
        made = copied(oldest, now)
        if made is oldest:
            self._taken.popleft()
        self._taken.append(made)
        self.count += 1

    # --------------------------------------------------------------------------- executions

    @contextmanager
    def acting(self, rank: int, count: int, before: Values | None) -> Iterator[None]:
        """The block in which a microbatch of `rank` is executed. It began when they had been taken
        over `count` times, in the end of its microbatch before with those of `before`, if known.
        """
        self._acting, self._next, self._known, self._before = rank, count, False, before
        try:
            yield
        finally:
            self._acting, self._before = -1, None

    def begin(self, module: DistributedDataParallel) -> None:
        """A forward of such a microbatch begins."""
        if self._before is not None:
            self._put(module, self._before)
            self._known, self._before = True, None

    def enter(self, module: DistributedDataParallel) -> None:
        """In such a forward they would be taken over: those that were are put in place.

        The first rank has its own but for those with which it began.
        """
        if self._acting == self.first and self._known:
            return
        oldest = self.count - len(self._taken)
        if oldest <= self._next < self.count:
            self._put(module, self._taken[self._next - oldest])
            self._known = True
        self._next += 1

    def left(self, module: DistributedDataParallel) -> Values | None:
        """Those of the first rank as the execution of its microbatch ends; None if not known."""
        known = self._acting == self.first and self._known
        return self._read(module, self._taken[-1]) if known else None

    def now(self, module: DistributedDataParallel) -> Values:
        """Those that move, as they are now: not copied."""
        buffers = module.modules_buffers
        return {at: buffers[at] for at in self._taken[-1]}

    # --------------------------------------------------------------------------- a lost first rank

    @property
    def rests(self) -> bool:
        """True if no forward of this transaction has taken them over."""
        return self.count == self._since

    def commit(
        self, module: DistributedDataParallel, holder: int | None, held: Values | None
    ) -> None:
        """The transaction is over: now `holder` has those of a lost first rank, which are `held` if
        that is this process.
        """
        if self.count and self.first != self._worker.env.rank:
            self._changes.end(module.modules_buffers, self._taken[-1])
        if holder is not None or not self.rests:
            self.holder, self.held = holder, held
        self._since = self.count

    @contextmanager
    def as_first(self, module: DistributedDataParallel) -> Iterator[None]:
        """The block in which this process does what the script does on the first rank alone."""
        held = self.held or self._left_by(self._leading)
        self.held = self._changes.put_in(self._changes.since(_of(module)) if held else {}, held)
        own = self._read(module, self.held)
        self._put(module, self.held)
        try:
            yield
        finally:
            self.held = self._read(module, self.held)
            self._put(module, own)
            if held:
                self._changes.end(module.modules_buffers, self._taken[-1])

    def _read(self, module: DistributedDataParallel, like: Mapping[int, Any]) -> Values:
        buffers = _of(module)
        return {at: buffers[at].detach().clone() for at in like if at < len(buffers)}

    def _put(self, module: DistributedDataParallel, values: Values) -> None:
        buffers = _of(module)
        pairs = [(buffers[at], one) for at, one in values.items() if at < len(buffers)]
        preserve = vars(torch.autograd)["_unsafe_preserve_version_counter"]
        for buffer, value in pairs:
            if buffer.shape == value.shape:
                with torch.no_grad(), nullcontext() if buffer.is_inference() else preserve(buffer):
                    buffer.copy_(value)


class DdpForwardSync(ForwardSync):
    """The buffers of all DDP modules of a script; `each` gives these in one order on all ranks."""

    def __init__(
        self,
        each: Callable[[], Iterable[tuple[DistributedDataParallel, LeadingBuffers]]],
        leave: Callable[[int, Mapping[int, Values]], None],
    ) -> None:
        """`leave` keeps buffers, by the module's number, in case this process is lost."""
        self._each = each
        self._leave = leave

    def counts(self) -> tuple[int, ...]:
        return tuple(one.count for _, one in self._each())

    @contextmanager
    def acting(self, rank: int, counts: Sequence[int], before: Buffers) -> Iterator[None]:
        every = list(self._each())
        known = [*before, *[None] * len(every)]
        with ExitStack() as stack:
            for (_, one), count, values in zip(every, counts, known, strict=False):
                stack.enter_context(one.acting(rank, count, values))
            yield

    def left(self) -> Buffers:
        return [one.left(module) for module, one in self._each()]

    def leads(self, rank: int) -> bool:
        return any(one.first == rank for _, one in self._each())

    def leave(self, step: int, rank: int) -> None:
        """Transaction `step` ends: if others take over the buffers of `rank`, it leaves them."""
        led = [(module, one) for module, one in self._each() if one.count and one.first == rank]
        if led:
            self._leave(step, {one.number: one.now(module) for module, one in led})

    def commit(self, step: int, holders: Mapping[int, int], held: Buffers) -> None:
        for number, (module, one) in enumerate(self._each()):
            one.commit(module, holders.get(number), held[number] if number < len(held) else None)
        if any(held):
            self._leave(step, {one.number: one.held for _, one in self._each() if one.held})

    @contextmanager
    def as_leading(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module, one in self._each():
                stack.enter_context(one.as_first(module))
            yield


def _of(module: DistributedDataParallel) -> list[Tensor]:
    """Its buffers that torch broadcasts, also those that were exchanged since the last time."""
    module._assign_modules_buffers()
    found: list[Tensor] = module.modules_buffers
    return found
