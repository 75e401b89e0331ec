"""The process group that an unmodified script holds while its members come and go.

Rank and size are those of the failure-free run and never change: DDP divides by them, FSDP and
DTensor keep them, the script computes with them. Behind them an inner communicator spans the
members of the present generation. Semantics with a lost member are tabled in docs/collectives.md;
in short: reductions and gathers complete over the survivors, a floating-point SUM is scaled to the
original size (so that `sum / world_size` stays a mean), AVG is the mean of the survivors, a slot of
a gather that nobody fills is filled by a stand-in, and what names a lost rank raises `PeerLost`.

Theory of operation. An operation has two phases: the data, on private staging copies, then a vote
(an all-reduce of one number). Who completes the vote knows that all members hold the result. When
the generation changes in between, members exchange two totals while they connect anew: operations
completed, operations held. If anybody completed number n, or all hold it, everyone uses what it
holds; otherwise all do it again. So no result has to be sent again, and no two members return from
operation n with different results.

Gradients never come this way (see `reduce`), except where a script reduces them by hand.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch

from ft_collectives.c10d import (
    Gloo,
    ProcessGroup,
    ProcessGroupGloo,
    ReduceOp,
    Work,
    options,
    work_of,
)
from ft_collectives.fabric import Channel, Fabric, Pending
from ft_collectives.faults import PeerLost, Superseded

Launch = Callable[[Gloo, list[torch.Tensor]], Work]
Deliver = Callable[[list[torch.Tensor], Channel], None]


class ElasticGroup(ProcessGroup):
    """Wraps a native gloo group; passes straight through until `protect` is called.

    torch's `ProcessGroup` is made for this (its trampoline PyProcessGroup.hpp); it is the one class
    of torch that the project inherits from, besides `Store`.
    """

    instances: ClassVar[list["ElasticGroup"]] = []
    alone: ClassVar[Callable[[], bool]] = staticmethod(lambda: False)
    """While this is true a collective has only us: another slot's code is executed here."""

    def __init__(self, native: Any, ranks: Sequence[int]) -> None:
        super().__init__(native.rank(), native.size())
        self.native = native
        self.ranks = tuple(ranks)
        self.fabric: Fabric | None = None
        self.channel: Channel | None = None
        self.completed = 0
        self.held = 0
        self._held_buffers: list[torch.Tensor] = []
        self._held_channel: Channel | None = None
        self._timeout = timedelta(minutes=30)
        _take_over(self, native)
        ElasticGroup.instances.append(self)  # C++ keeps only its own half alive

    # --------------------------------------------------------------------------- identity

    def getBackendName(self) -> str:  # looked up by the C++ trampoline
        return str(self.native.name())

    def name(self) -> str:
        return str(self.native.name())

    def get_group_store(self) -> Any:
        return self.native.get_group_store()

    def protect(self, fabric: Fabric, name: str) -> None:
        """From now on operations survive the loss of members of other replicas."""
        backend = self.native._get_backend(torch.device("cpu"))
        assert isinstance(backend, ProcessGroupGloo), f"{backend} is not gloo"
        self.fabric = fabric
        self.channel = fabric.adopt(name, self.ranks, backend)
        self.channel.on_align = lambda: (self.completed, self.held)

    # --------------------------------------------------------------------------- transactions

    def _transact(
        self, inputs: Sequence[torch.Tensor], launch: Launch, deliver: Deliver
    ) -> Work:
        """Stage `inputs`, run `launch` on the members, vote, then `deliver` the staged result."""
        fabric, channel = self.fabric, self.channel
        assert fabric is not None and channel is not None, "not protected"
        if ElasticGroup.alone():
            us = Channel(name="alone", ranks=self.ranks, members=(fabric.rank,))
            deliver([tensor.detach().clone() for tensor in inputs], us)
            return _completed()
        number = self.completed + 1
        while True:
            generation = fabric.ready(channel)
            if self.held == number and self._settled(channel, number):
                break
            try:
                staged = [tensor.detach().clone() for tensor in inputs]
                self._run(fabric, channel, generation, staged, launch)
                with fabric.changed:
                    if fabric.view.generation != generation:
                        raise Superseded
                    self.held, self._held_buffers = number, staged
                self._vote(fabric, channel, generation)
                break
            except Superseded:
                continue
        self.completed = number
        deliver(self._held_buffers, channel)
        self._held_buffers = []
        return _completed()

    def _settled(self, channel: Channel, number: int) -> bool:
        """Did the exchange at the last meeting show that operation `number` is done?"""
        totals = channel.aligned
        if not totals:
            return False
        anybody = any(completed >= number for completed, _ in totals)
        return anybody or all(held >= number for _, held in totals)

    def _run(
        self, fabric: Fabric, channel: Channel, generation: int, staged: list[torch.Tensor],
        launch: Launch,
    ) -> None:
        fabric.bury(staged)  # gloo may write late into what is left behind
        pending = fabric.launch(channel, generation, lambda group: launch(group, staged))
        fabric.finish([pending], generation)
        fabric.unbury(staged)

    def _vote(self, fabric: Fabric, channel: Channel, generation: int) -> None:
        pending: Pending = fabric.launch(
            channel, generation, lambda group: group.allreduce([torch.ones(1)])
        )
        fabric.finish([pending], generation)
        with fabric.changed:
            if fabric.view.generation != generation:
                raise Superseded

    # --------------------------------------------------------------------------- reductions

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        if self.channel is None:
            return self.native.allreduce(tensors, opts or options("AllreduceOptions"))
        op = getattr(opts, "reduceOp", ReduceOp.SUM)
        average = op == ReduceOp.AVG
        inner = options("AllreduceOptions", reduceOp=ReduceOp.SUM if average else op)

        def launch(group: Gloo, staged: list[torch.Tensor]) -> Work:
            if len(staged) == 1:
                return group.allreduce(staged, inner)
            works = [group.allreduce([one], inner) for one in staged]
            return works[-1] if len(works) == 1 else _all(works)

        def deliver(staged: list[torch.Tensor], channel: Channel) -> None:
            factor = _factor(op, average, self.size(), len(channel.members) or 1)
            for target, result in zip(tensors, staged, strict=True):
                scaled = result * factor if factor != 1 and _is_float(result) else result
                target.detach().copy_(scaled)

        return self._transact(tensors, launch, deliver)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        if self.channel is None:
            return self.native.reduce(tensors, opts)
        root = int(opts.rootRank)
        copies = [tensor.detach().clone() for tensor in tensors]
        work = self.allreduce(copies, opts)
        if self.rank() == root:
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.detach().copy_(copy)
        return work

    def barrier(self, opts: Any = None) -> Work:
        if self.channel is None:
            return self.native.barrier(opts or options("BarrierOptions"))
        return self.allreduce([torch.zeros(1)])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        if self.channel is None:
            self.native.monitored_barrier(timeout, wait_all_ranks)
        else:
            self.barrier()

    def reduce_scatter(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        if self.channel is None:
            return self.native.reduce_scatter(outs, ins, opts or options("ReduceScatterOptions"))
        stacked = torch.stack([tensor.detach() for tensor in ins[0]])
        work = self.allreduce([stacked], opts)
        outs[0].detach().copy_(stacked[self.rank()])
        return work

    def reduce_scatter_single(
        self, out: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Work:
        if self.channel is None:
            return self.native._reduce_scatter_base(
                out, source, opts or options("ReduceScatterOptions")
            )
        whole = source.detach().clone()
        work = self.allreduce([whole], opts)
        out.detach().copy_(whole.view(self.size(), -1)[self.rank()].view_as(out))
        return work

    _reduce_scatter_base = reduce_scatter_single

    # --------------------------------------------------------------------------- gathers

    def _gather_all(
        self, source: torch.Tensor, place: Callable[[int, torch.Tensor], None]
    ) -> Work:
        """`place(virtual rank, tensor)` for every rank; a lost one is filled by a stand-in."""
        count, shape, size = source.numel(), source.shape, self.size()
        flat = source.detach().reshape(-1)
        slots = torch.zeros(size * count, dtype=flat.dtype)

        def launch(group: Gloo, staged: list[torch.Tensor]) -> Work:
            outs = list(staged[1][: group.size() * count].split(count)) if count else []
            return group.allgather([outs or [staged[1]] * group.size()], [staged[0]])

        def deliver(staged: list[torch.Tensor], channel: Channel) -> None:
            members = [self.ranks.index(rank) for rank in channel.members] or [self.rank()]
            parts = list(staged[1].split(count)) if count else [staged[0]] * size
            if channel.group is None:
                parts = [staged[0]]
            for virtual in range(size):
                at = members.index(virtual) if virtual in members else virtual % len(members)
                place(virtual, parts[at].reshape(shape))

        return self._transact([flat, slots], launch, deliver)

    def allgather(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        if self.channel is None:
            return self.native.allgather(outs, ins, opts or options("AllgatherOptions"))
        return self._gather_all(ins[0], lambda at, part: _put(outs[0][at], part))

    def all_gather_single(
        self, out: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Work:
        if self.channel is None:
            return self.native._allgather_base(out, source, opts or options("AllgatherOptions"))
        rows = out.detach().view(self.size(), -1)
        return self._gather_all(source, lambda at, part: _put(rows[at], part.reshape(-1)))

    _allgather_base = all_gather_single

    def gather(self, outs: Any, ins: Any, opts: Any) -> Work:
        if self.channel is None:
            return self.native.gather(outs, ins, opts)
        mine = self.rank() == int(opts.rootRank)
        return self._gather_all(
            ins[0], lambda at, part: _put(outs[0][at], part) if mine else None
        )

    # --------------------------------------------------------------------------- rooted

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """From a lost root: its stand-in's tensor, right for replicated state such as buffers.

        Calls of the script itself never get here with a lost root: `patches` refuses them.
        """
        if self.channel is None:
            return self.native.broadcast(tensors, opts)
        root = self.ranks[int(opts.rootRank)]

        def launch(group: Gloo, staged: list[torch.Tensor]) -> Work:
            channel = self.channel
            assert channel is not None, "protected"
            source = root if root in channel.members else channel.members[0]
            inner = options("BroadcastOptions", rootRank=channel.position(source))
            return _all([group.broadcast([one], inner) for one in staged])

        def deliver(staged: list[torch.Tensor], _: Channel) -> None:
            for target, result in zip(tensors, staged, strict=True):
                target.detach().copy_(result)

        return self._transact(tensors, launch, deliver)

    def scatter(self, outs: Any, ins: Any, opts: Any) -> Work:
        if self.channel is None:
            return self.native.scatter(outs, ins, opts)
        self.require(int(opts.rootRank), "scatter")
        size = self.size()
        out = outs[0]
        mine = self.rank() == int(opts.rootRank)
        whole = torch.stack(list(ins[0])) if mine else out.new_empty((size, *out.shape))
        inner = options("BroadcastOptions", rootRank=int(opts.rootRank))
        work = self.broadcast([whole], inner)
        out.detach().copy_(whole[self.rank()])
        return work

    def require(self, virtual: int, call: str) -> None:
        """Raise PeerLost if the `virtual` rank of this group is no longer a member."""
        if self.fabric is None:
            return
        rank = self.ranks[virtual]
        if rank not in self.fabric.view.live_ranks:
            raise PeerLost(f"dist.{call}: rank {rank} is lost, and nobody can speak for it")

    # --------------------------------------------------------------------------- point to point

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        return self._point("send", tensors, peer, tag)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        return self._point("recv", tensors, peer, tag)

    def _point(self, call: str, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        if self.channel is None or self.fabric is None:
            work: Work = getattr(self.native, call)(tensors, peer, tag)
            return work
        self.require(peer, call)
        self.fabric.ready(self.channel)
        assert self.channel.group is not None, "the peer is a member"
        at = self.channel.position(self.ranks[peer])
        inner: Work = getattr(self.channel.group, call)(tensors, at, tag)
        return inner


def _take_over(outer: Any, native: Any) -> None:
    """Give `outer` the backends and names of `native`: C++ callers fall through to them."""
    kinds = {"gloo": ProcessGroup.BackendType.GLOO, "nccl": ProcessGroup.BackendType.NCCL}
    for number, device in enumerate(native._device_types):
        backend = native._get_backend(device)
        kind = kinds.get(backend.name(), ProcessGroup.BackendType.CUSTOM)
        if number == 0:
            outer._set_default_backend(kind)
        outer._register_backend(device, kind, backend)
    outer._set_group_name(native.group_name)
    outer._set_group_desc(native.group_desc)


def _factor(op: Any, average: bool, size: int, members: int) -> float:
    """What turns a sum over the members into the answer (module docstring)."""
    if average:
        return 1 / members
    return size / members if op == ReduceOp.SUM else 1


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _put(target: torch.Tensor, value: torch.Tensor) -> None:
    target.detach().copy_(value.view_as(target))


def _completed() -> Work:
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result([])
    return work_of(future)


def _all(works: Sequence[Work]) -> Work:
    """One work that is complete when all are."""
    if len(works) == 1:
        return works[0]
    together = torch.futures.collect_all([work.get_future() for work in works])
    return work_of(together)
