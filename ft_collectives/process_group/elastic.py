"""The process group that an unmodified script holds while its members change.

Rank and size stay those of the failure-free run: DDP divides by the size, FSDP and DTensor keep
both, the script computes with both. Behind them an inner communicator spans the members of the
present generation. docs/collectives.md says what each call gives after a loss. In short: reductions
and gathers complete over the survivors; a floating point SUM is scaled to the original size, so
that `sum / world_size` stays a mean; AVG is the mean of the survivors; a substitute fills the slot
of a lost rank in a gather; a call that needs a lost rank raises `PeerLost`.

Here are the methods that torch calls, with its names and arguments: `Backend.hpp` and
`PyProcessGroup.hpp` in torch/csrc/distributed/c10d. They check arguments as gloo does and hand
over to `survivors`. Every collective is complete when the call returns, also with `async_op=True`.
Messages between two ranks are carried by `point_to_point`. Gradients come through neither (see
`reducer`), except where a script reduces them by hand.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

import torch

from ft_collectives.communicators.c10d import (
    GroupMember,
    ProcessGroupGloo,
    Work,
    options,
)
from ft_collectives.communicators.errors import PeerLost
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import limit_of
from ft_collectives.process_group import call_record, functional
from ft_collectives.process_group.argument_checks import (
    check_all_gather,
    check_all_to_all,
    check_bytes,
    check_gather,
    check_reduce_scatter,
    check_reduce_scatter_single,
    check_root,
    check_splits,
)
from ft_collectives.process_group.call_record import CallRecord, recorded
from ft_collectives.process_group.point_to_point import Call, PointToPoint
from ft_collectives.process_group.results import (
    completed,
    put,
    put_first,
    split_for_ranks,
    writer_to,
)
from ft_collectives.process_group.substitutes import (
    roots_are_required,
    site_of_call,
)
from ft_collectives.process_group.substitution_policy import NO_POLICY, SubstitutionPolicy
from ft_collectives.process_group.survivors import SurvivorCollectives
from ft_collectives.process_group.two_phase import TwoPhaseOperations
from ft_collectives.process_group.wrapped_group import WrappedGroup

T = TypeVar("T")

UNSERVED = "of tensors on an accelerator, between replicas that may be lost, is not served"


class ElasticGroup(WrappedGroup):
    """Wraps a native group; passes every call on to it until `protect` is called."""

    instances: ClassVar[list["ElasticGroup"]] = []
    record: ClassVar[CallRecord | None] = None

    def __init__(self, native: Any, ranks: Sequence[int], place: int | None = None) -> None:
        """`ranks` are global. `place` is ours among them, where `native` has this rank alone."""
        super().__init__(native, ranks, native.rank() if place is None else place)
        self.fabric: Fabric | None = None
        self.policy = NO_POLICY
        self.survivors: SurvivorCollectives | None = None
        self.point_to_point: PointToPoint | None = None
        self._gloo_alone = False
        ElasticGroup.instances.append(self)  # C++ keeps only its own half alive

    @property
    def protected(self) -> bool:
        """True if operations survive losses."""
        return self.survivors is not None

    def protect(
        self, fabric: Fabric, policy: SubstitutionPolicy = NO_POLICY, *, connected: bool = True
    ) -> None:
        """Let operations survive the loss of members of other replicas from now on.

        `policy` says what stands in for lost ranks. `connected` is False if the native group has
        this rank alone; else its communicator serves until the first loss.

        Members meet under torch's name of the group. A number of our own would not do: a rank only
        counts the groups that it is in, and groups side by side would have the same.
        """
        backends = [self.native._get_backend(device) for device in self.native._device_types]
        gloo = next((one for one in backends if isinstance(one, ProcessGroupGloo)), None)
        self._gloo_alone = all(one is gloo for one in backends)
        functional.install(
            lambda group: isinstance(group, ElasticGroup) and group.protected,
            ("CPU",) if self._gloo_alone else ("CPU", "CUDA"),
        )
        self.fabric = fabric
        if gloo is not None:  # over NCCL alone, gloo is connected beside it
            fabric.share_devices(gloo)
        name = fabric.unused(f"group {self.native.group_name}")
        limit = functools.partial(limit_of, self.native)
        self.policy = policy
        self.point_to_point = PointToPoint(fabric, name, limit)
        known = gloo if connected else None
        operations = TwoPhaseOperations(fabric, name, self.ranks, known, limit)
        self.survivors = SurvivorCollectives(operations, policy)

    def shutdown(self) -> None:
        """Serve `destroy_process_group`. If a member is lost NCCL would flush for ever: skip it."""
        if self.survivors is None:
            self.native.shutdown()

    def _root(self, call: str, opts: Any) -> int:
        """Return the root of a call, a place in the group. Raises RuntimeError for any other."""
        root = int(opts.rootRank)
        check_root(call, root, self.size())
        return root

    # --------------------------------------------------------------------------- reductions

    @recorded(call_record.all_reduce)
    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        if self.survivors is None:
            return self.native.allreduce(tensors, opts or options("AllreduceOptions"))
        dense = [tensor.to_dense() if tensor.is_sparse else tensor for tensor in tensors]
        self.survivors.reduce("all_reduce", dense, opts)
        for tensor, whole in zip(tensors, dense, strict=True):
            if tensor.is_sparse:
                tensor.detach().copy_(whole.to_sparse(tensor.sparse_dim()))
        return completed(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    @recorded(call_record.reduce)
    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Reduce; with a lost root the call completes, and no rank gets the result."""
        if self.survivors is None:
            return self.native.reduce(tensors, opts)
        root = self._root("reduce", opts)
        copies = [tensor.detach().clone() for tensor in tensors]
        self.survivors.reduce("reduce", copies, opts, root)
        if self.rank() == root:
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.detach().copy_(copy)
        return completed(tensors)

    def barrier(self, opts: Any = None) -> Work:
        if self.survivors is None:
            return self.native.barrier(opts or options("BarrierOptions"))
        self.survivors.meet()
        return completed([])

    def present(self) -> tuple[int, ...]:
        """Wait for all members; return their places in this group."""
        assert self.survivors is not None, "not protected"
        return self.survivors.meet()

    def among_the_same(self) -> AbstractContextManager[None]:
        """Keep all operations among the members of the first one (`TwoPhaseOperations`)."""
        assert self.survivors is not None, "not protected"
        return self.survivors.operations.among_the_same()

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        if self.survivors is None:
            self.native.monitored_barrier(timeout, wait_all_ranks)
        else:
            self.barrier()

    @recorded(call_record.reduce_scatter)
    def reduce_scatter(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        if self.survivors is None:
            return self.native.reduce_scatter(outs, ins, opts or options("ReduceScatterOptions"))
        for out, parts in zip(outs, ins, strict=True):
            check_reduce_scatter(out, parts, self.size())
            whole = [part.detach().clone() for part in parts]
            self.survivors.reduce("reduce_scatter", whole, opts)
            put(out, whole[self.rank()])
        return completed(outs)

    @recorded(call_record.reduce_scatter)
    def reduce_scatter_single(
        self, out: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Work:
        if self.survivors is None:
            return self.native._reduce_scatter_base(
                out, source, opts or options("ReduceScatterOptions")
            )
        if self._gloo_alone:
            check_reduce_scatter_single(out, source, self.size())
        elif source.numel() != out.numel() * self.size():
            raise ValueError(f"{source.numel()} elements are not {self.size()} * {out.numel()}")
        whole = source.detach().clone(memory_format=torch.contiguous_format)
        self.survivors.reduce("reduce_scatter", [whole], opts)
        start = self.rank() * out.numel()
        put(out, whole.view(-1)[start : start + out.numel()])
        return completed([out])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        for out, source in zip(outs, ins, strict=True):
            self.reduce_scatter_single(out, source, opts).wait()
        return completed(outs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --------------------------------------------------------------------------- gathers

    @recorded(call_record.all_gather)
    def allgather(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        if self.survivors is None:
            return self.native.allgather(outs, ins, opts or options("AllgatherOptions"))
        for slots, source in zip(outs, ins, strict=True):
            check_all_gather(slots, source, self.size())
            self.survivors.gather(source, writer_to(slots))
        return completed(outs[0] if len(outs) == 1 else outs)

    allgather_coalesced = allgather

    @recorded(call_record.all_gather)
    def all_gather_single(self, out: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        if self.survivors is None:
            return self.native._allgather_base(out, source, opts or options("AllgatherOptions"))
        if self._gloo_alone:
            check_all_gather(out.chunk(self.size()), source, self.size())
        elif out.numel() != source.numel() * self.size():
            raise ValueError(f"{out.numel()} elements are not {self.size()} * {source.numel()}")
        self.survivors.gather(source, lambda parts: put(out, torch.stack(parts)))
        return completed([out])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        for out, source in zip(outs, ins, strict=True):
            self.all_gather_single(out, source, opts).wait()
        return completed(outs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @recorded(call_record.gather)
    def gather(self, outs: Any, ins: Any, opts: Any) -> Work:
        """Gather; with a lost root the call completes, and who brings slots gets the result.

        A root without a slot for every rank raises after the others have completed.
        """
        if self.survivors is None:
            return self.native.gather(outs, ins, opts)
        root = self._root("gather", opts)
        slots = outs[0] if outs else []
        give = writer_to(slots) if len(slots) == self.size() else lambda parts: None
        self.survivors.gather(ins[0], give, root)
        if self.rank() == root:
            check_gather(slots, self.size())
        return completed(slots)

    @recorded(call_record.all_to_all)
    def all_to_all_single(
        self,
        out: torch.Tensor,
        source: torch.Tensor,
        out_sizes: Sequence[int],
        in_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        if self.survivors is None:
            opts = opts or options("AllToAllOptions")
            return self.native.all_to_all_single(out, source, out_sizes, in_sizes, opts)
        if out_sizes or in_sizes:
            check_splits(source, in_sizes, self.size())
            check_splits(out, out_sizes, self.size())
        else:
            check_bytes(out, source, self.size())
        targets = [part.clone() for part in split_for_ranks(out, out_sizes, self.size())]
        self.survivors.exchange(targets, split_for_ranks(source, in_sizes, self.size()))
        put_first(out, torch.cat([part.reshape(-1) for part in targets]))
        return completed([out])

    alltoall_base = all_to_all_single

    @recorded(call_record.all_to_all)
    def alltoall(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        if self.survivors is None:
            return self.native.alltoall(outs, ins, opts or options("AllToAllOptions"))
        check_all_to_all(outs, ins, self.size())
        self.survivors.exchange(outs, ins)
        return completed(outs)

    # --------------------------------------------------------------------------- rooted

    @recorded(call_record.broadcast)
    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Broadcast; with a lost root its substitute sends: right for replicated state, such as
        buffers.

        A call of the script itself (`requiring_roots`) raises PeerLost instead, also if the root
        dies during it, unless a survivor knows what it would send (`CallSite`).
        """
        if self.survivors is None:
            return self.native.broadcast(tensors, opts)
        root = self._root("broadcast", opts)
        self.survivors.spread("broadcast", tensors, root, roots_are_required(), site_of_call())
        return completed(tensors)

    @recorded(call_record.scatter)
    def scatter(self, outs: Any, ins: Any, opts: Any) -> Work:
        if self.survivors is None:
            return self.native.scatter(outs, ins, opts)
        root, out, site = self._root("scatter", opts), outs[0], site_of_call()
        if site is None:
            self.survivors.require(root, "scatter")
        brings = self.rank() == root or (site is not None and site.done)  # in a lost root's place
        parts = ins[0] if brings else [torch.zeros_like(out)] * self.size()
        whole = [part.detach().clone() for part in parts]
        self.survivors.spread("scatter", whole, root, named=True, site=site)
        put(out, whole[self.rank()])
        return completed(outs)

    def require(self, virtual: int, call: str) -> None:
        """Raise PeerLost if the `virtual` rank of this group is no longer a member."""
        if self.survivors is not None:
            self.survivors.require(virtual, call)

    # --------------------------------------------------------------------------- point to point

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        return self._point("send", tensors, peer, tag)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        return self._point("recv", tensors, peer, tag)

    def _start_coalescing(self, device: torch.device) -> None:
        """Serve `batch_isend_irecv`, where a backend can coalesce messages, as NCCL can."""
        if self.protected:
            raise RuntimeError(f"dist.batch_isend_irecv {UNSERVED}")
        super()._start_coalescing(device)

    def _point(self, call: Call, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        if self.point_to_point is None:
            work: Work = getattr(self.native, call)(tensors, peer, tag)
            return work
        if not all(tensor.is_cpu for tensor in tensors):
            raise RuntimeError(f"dist.{call} {UNSERVED}")
        if not 0 <= peer < self.size():  # gloo would wait for it
            raise ValueError(f"dist.{call}: rank {peer} is not part of the group")
        if not self.policy.replaying():
            return self.point_to_point.post(call, tensors, self.ranks[peer], tag)
        if call == "recv":
            raise PeerLost("dist.recv: another rank's code is executed again, and nobody sends")
        return completed(tensors)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Work:
        if self.point_to_point is None:
            return self.native.recv_anysource(tensors, tag)
        raise PeerLost("dist.recv without a source cannot be protected: name the rank to hear")


def as_one(original: Callable[..., T]) -> Callable[..., T]:
    """Wrap a function such as `dist.all_gather_object`, which gathers sizes and then contents.

    Both come from the same members: the call is repeated if a loss comes between the two.
    """
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> T:
        group = parameters.bind(*args, **kwargs).arguments.get("group") or GroupMember.WORLD
        if not isinstance(group, ElasticGroup) or group.survivors is None:
            return original(*args, **kwargs)
        return group.survivors.operations.call(lambda: original(*args, **kwargs))

    return wrapper
