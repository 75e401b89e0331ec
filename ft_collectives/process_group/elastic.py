"""The process group that an unmodified script holds while its members come and go.

Rank and size are those of the failure-free run and never change: DDP divides by them, FSDP and
DTensor keep them, the script computes with them. Behind them an inner communicator spans the
members of the present generation. Semantics with a lost member are tabled in docs/collectives.md;
in short: reductions and gathers complete over the survivors, a floating-point SUM is scaled to the
original size (so that `sum / world_size` stays a mean), AVG is the mean of the survivors, a slot of
a gather that nobody fills is filled by a stand-in, and what names a lost rank raises `PeerLost`.

Every collective is a transaction (see `two_phase`) made of few operations of gloo, and complete
when the call returns, also with `async_op=True`. Messages between two ranks go their own way
(`point_to_point`). Gradients come neither way (see `reducer`), except where a script reduces them
by hand.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch

from ft_collectives.communicators.c10d import (
    GroupMember,
    ProcessGroup,
    ProcessGroupGloo,
    ReduceOp,
    Work,
    options,
    take_over,
)
from ft_collectives.communicators.channel import Communicator
from ft_collectives.communicators.errors import PeerLost
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import limit_of
from ft_collectives.process_group import functional
from ft_collectives.process_group.call_check import NONE, Asked, asked
from ft_collectives.process_group.point_to_point import Call, Pairs
from ft_collectives.process_group.results import (
    Give,
    completed,
    dealt,
    finish,
    fit,
    fold_by,
    giving,
    put,
    put_first,
)
from ft_collectives.process_group.substitutes import (
    Site,
    answer_of,
    answered,
    roots_are_named,
    roots_are_spoken_for,
    site_of_call,
    stand_ins,
)
from ft_collectives.process_group.two_phase import Deliver, Fold, Launch, Lend, Transactions

T = TypeVar("T")

JOINT = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "gather", "all_to_all")
"""Calls in whose result all members have a part."""

UNSERVED = "of tensors on an accelerator, between replicas that may be lost, is not served"


class ElasticGroup(ProcessGroup):
    """Wraps a native gloo group; passes straight through until `protect` is called.

    torch's `ProcessGroup` is made for this (its trampoline PyProcessGroup.hpp); it is the one class
    of torch that the project inherits from, besides `Store`.
    """

    instances: ClassVar[list["ElasticGroup"]] = []
    alone: ClassVar[Callable[[], bool]] = staticmethod(lambda: False)
    unheard: ClassVar[Callable[[torch.Tensor], torch.Tensor]] = staticmethod(lambda alone: alone)
    """While this is true a collective has only us: another slot's code is executed here."""
    heard: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    """Told that the ranks are about to say something to each other that may be different."""
    lend: ClassVar[Callable[..., Lend | None]] = staticmethod(lambda ranks, tensors: None)
    """Who knows what lost members of `ranks` would have given, where this one gives `tensors`."""
    partial: ClassVar[Callable[[str, int, int], None]] = staticmethod(lambda call, of, ranks: None)
    """Told that a result of `call` is over fewer ranks. What these gave may have been the same:
    nobody knows what a lost one would have given.
    """

    def __init__(self, native: Any, ranks: Sequence[int], place: int | None = None) -> None:
        """`place`: ours among `ranks`, where `native` is of this rank alone."""
        super().__init__(native.rank() if place is None else place, len(ranks))
        self.native = native
        self.ranks = tuple(ranks)
        self.fabric: Fabric | None = None
        self.transactions: Transactions | None = None
        self.pairs: Pairs | None = None
        self._gloo_alone = False
        take_over(self, native)
        ElasticGroup.instances.append(self)  # C++ keeps only its own half alive

    # --------------------------------------------------------------------------- identity

    def getBackendName(self) -> str:  # looked up by the C++ trampoline
        return str(self.native.name())

    def name(self) -> str:
        return str(self.native.name())

    def get_group_store(self) -> Any:
        return self.native.get_group_store()

    @property
    def protected(self) -> bool:
        return self.transactions is not None

    def protect(self, fabric: Fabric, connected: bool = True) -> None:
        """From now on operations survive the loss of members of other replicas.

        `connected`: the native group connects all members, and serves as long as none is lost.

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
        name = f"group {self.native.group_name}"
        self.pairs = Pairs(fabric, name)
        known = gloo if connected else None
        self.transactions = Transactions(fabric, name, self.ranks, known)
        self.transactions.channel.limit = self.pairs.limit = functools.partial(
            limit_of, self.native
        )

    def shutdown(self) -> None:
        """`destroy_process_group`. NCCL would flush first, for ever where a member is lost."""
        if not self.protected:
            self.native.shutdown()

    def _refused(self, opts: Any = None) -> bool:
        """True of what gloo refuses before anybody is asked: its own words are those of torchrun's
        run. Of a call with a root, where there is no such root.
        """
        known = opts is not None and 0 <= int(opts.rootRank) < self.size()
        return self._gloo_alone and not known

    def _transact(
        self,
        asked: Asked,
        inputs: Sequence[torch.Tensor],
        launch: Launch,
        deliver: Deliver,
        fold: Fold | None = None,
    ) -> None:
        assert self.transactions is not None and self.fabric is not None, "not protected"
        if ElasticGroup.alone():
            us = Communicator(members=(self.fabric.rank,))
            deliver([ElasticGroup.unheard(tensor.detach().clone()) for tensor in inputs], us)
            return
        if inputs and not answered():
            ElasticGroup.heard()
        known = answered()  # by somebody who knows what lost members would have given
        lend = None if known or fold is None else ElasticGroup.lend(self.ranks, inputs)
        among = self.transactions.run(asked, inputs, launch, deliver, lend, fold)
        if not (known or among.whole or roots_are_spoken_for()) and asked.call in JOINT:
            ElasticGroup.partial(asked.call, len(among.members), self.size())

    # --------------------------------------------------------------------------- reductions

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        if not self.protected:
            return self.native.allreduce(tensors, opts or options("AllreduceOptions"))
        dense = [tensor.to_dense() if tensor.is_sparse else tensor for tensor in tensors]
        self._reduce_all("all_reduce", dense, opts)
        for tensor, whole in zip(tensors, dense, strict=True):
            if tensor.is_sparse:
                tensor.detach().copy_(whole.to_sparse(tensor.sparse_dim()))
        return completed(tensors)

    def _reduce_all(
        self, call: str, tensors: Sequence[torch.Tensor], opts: Any, root: int = NONE
    ) -> None:
        op = getattr(opts, "reduceOp", ReduceOp.SUM)
        average = op == ReduceOp.AVG
        inner = options("AllreduceOptions", reduceOp=ReduceOp.SUM if average else op)

        def launch(now: Communicator, staged: list[torch.Tensor]) -> list[Work]:
            return [now.group.allreduce([one], inner) for one in staged]

        def deliver(staged: list[torch.Tensor], among: Communicator) -> None:
            for target, result in zip(tensors, staged, strict=True):
                finish(result, op, among, self.size())
                target.detach().copy_(result)

        self._transact(asked(call, tensors, root, op), tensors, launch, deliver, fold_by(op))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """To a lost root: nobody gets the result."""
        if not self.protected or self._refused(opts):
            return self.native.reduce(tensors, opts)
        copies = [tensor.detach().clone() for tensor in tensors]
        root = int(opts.rootRank)
        self._reduce_all("reduce", copies, opts, root)
        if self.rank() == root:
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.detach().copy_(copy)
        return completed(tensors)

    def barrier(self, opts: Any = None) -> Work:
        if not self.protected:
            return self.native.barrier(opts or options("BarrierOptions"))
        wish = Asked("barrier")  # the vote is enough
        self._transact(wish, [], lambda now, staged: [], lambda staged, among: None)
        return completed([])

    def present(self) -> tuple[int, ...]:
        """A barrier that tells the places in this group of those who came."""
        met: list[Communicator] = []
        self._transact(
            Asked("barrier"), [], lambda now, staged: [], lambda staged, among: met.append(among)
        )
        return tuple(self.ranks.index(rank) for rank in met[0].members)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        if not self.protected:
            self.native.monitored_barrier(timeout, wait_all_ranks)
        else:
            self.barrier()

    def reduce_scatter(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        if not self.protected:
            return self.native.reduce_scatter(outs, ins, opts or options("ReduceScatterOptions"))
        for out, parts in zip(outs, ins, strict=True):
            whole = [part.detach().clone() for part in parts]
            self._reduce_all("reduce_scatter", whole, opts)
            put(out, whole[self.rank()])
        return completed(outs)

    def reduce_scatter_single(
        self, out: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Work:
        if not self.protected:
            return self.native._reduce_scatter_base(
                out, source, opts or options("ReduceScatterOptions")
            )
        if source.numel() != out.numel() * self.size():
            raise ValueError(f"{source.numel()} elements are not {self.size()} * {out.numel()}")
        whole = source.detach().clone(memory_format=torch.contiguous_format)
        self._reduce_all("reduce_scatter", [whole], opts)
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

    def _gather_all(self, source: torch.Tensor, give: Give, root: int = NONE) -> None:
        """One tensor of the shape of `source` for every rank; a lost one has a stand-in's."""
        count, shape, size = source.numel(), source.shape, self.size()
        room = max(count, 1)  # gloo gathers something
        flat = source.new_zeros(room)
        flat[:count] = source.detach().reshape(-1)
        slots = flat.new_zeros(size * room)

        def launch(now: Communicator, staged: list[torch.Tensor]) -> list[Work]:
            outs = list(staged[1].split(room))[: len(now.members)]
            return [now.group.allgather([outs], [staged[0]])]

        def deliver(staged: list[torch.Tensor], among: Communicator) -> None:
            parts = [staged[0]] if among.group is None else list(staged[1].split(room))
            sources = stand_ins(self.ranks, among.members)
            given = [parts[at][:count].view(shape) for at in sources]
            for place, rank in enumerate(self.ranks):
                known = None if rank in among.members else answer_of(rank)
                if known is not None:
                    given[place] = known.to(parts[0]).view(shape)
            give(given)

        call = "all_gather" if root == NONE else "gather"
        self._transact(asked(call, [source], root), [flat, slots], launch, deliver)

    def allgather(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        if not self.protected or (self._refused() and not fit(outs, ins, self.size())):
            return self.native.allgather(outs, ins, opts or options("AllgatherOptions"))
        for slots, source in zip(outs, ins, strict=True):
            self._gather_all(source, giving(slots))
        return completed(outs[0] if len(outs) == 1 else outs)

    allgather_coalesced = allgather

    def all_gather_single(self, out: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        if not self.protected:
            return self.native._allgather_base(out, source, opts or options("AllgatherOptions"))
        if out.numel() != source.numel() * self.size():
            raise ValueError(f"{out.numel()} elements are not {self.size()} * {source.numel()}")
        self._gather_all(source, lambda parts: put(out, torch.stack(parts)))
        return completed([out])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        for out, source in zip(outs, ins, strict=True):
            self.all_gather_single(out, source, opts).wait()
        return completed(outs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outs: Any, ins: Any, opts: Any) -> Work:
        """To a lost root: nobody gets the result."""
        if not self.protected or self._refused(opts):
            return self.native.gather(outs, ins, opts)
        root = int(opts.rootRank)
        mine = self.rank() == root
        self._gather_all(ins[0], giving(outs[0]) if mine else lambda parts: None, root)
        return completed(outs[0] if mine else [])

    def all_to_all_single(
        self,
        out: torch.Tensor,
        source: torch.Tensor,
        out_sizes: Sequence[int],
        in_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        uneven = not (out_sizes or in_sizes) and source.nbytes % self.size()
        if not self.protected or (uneven and self._refused()):
            opts = opts or options("AllToAllOptions")
            return self.native.all_to_all_single(out, source, out_sizes, in_sizes, opts)
        targets = [part.clone() for part in dealt(out, out_sizes, self.size())]
        self._exchange_all(targets, dealt(source, in_sizes, self.size()))
        put_first(out, torch.cat([part.reshape(-1) for part in targets]))
        return completed([out])

    alltoall_base = all_to_all_single

    def alltoall(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        if not self.protected:
            return self.native.alltoall(outs, ins, opts or options("AllToAllOptions"))
        self._exchange_all(outs, ins)
        return completed(outs)

    def _exchange_all(self, outs: Sequence[torch.Tensor], ins: Sequence[torch.Tensor]) -> None:
        """Give `ins[r]` to every rank r and take `outs[r]` from it; zeros from a lost one."""
        flat = [part.detach().reshape(-1) for part in ins]
        room = torch.zeros(sum(out.numel() for out in outs), dtype=outs[0].dtype)

        def launch(now: Communicator, staged: list[torch.Tensor]) -> list[Work]:
            live = [self.ranks.index(rank) for rank in now.members]
            source = torch.cat([staged[at] for at in live])
            wanted = [outs[at].numel() for at in live]
            offered = [staged[at].numel() for at in live]
            return [now.group.alltoall_base(staged[-1][: sum(wanted)], source, wanted, offered)]

        def deliver(staged: list[torch.Tensor], among: Communicator) -> None:
            received = staged[self.rank()] if among.group is None else staged[-1]
            for at, out in enumerate(outs):
                if self.ranks[at] in among.members:
                    put(out, received[: out.numel()])
                    received = received[out.numel() :]
                else:
                    out.detach().zero_()

        wish = Asked("all_to_all", room.dtype)  # sizes may differ from pair to pair
        self._transact(wish, [*flat, room], launch, deliver)

    # --------------------------------------------------------------------------- rooted

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """From a lost root: its stand-in's tensor, right for replicated state such as buffers.

        In a call of the script itself (`naming_roots`) PeerLost, also if the root dies during it,
        unless survivors know what it would say there (`Site`).
        """
        if not self.protected or self._refused(opts):
            return self.native.broadcast(tensors, opts)
        root = int(opts.rootRank)
        self._spread("broadcast", tensors, root, roots_are_named(), site_of_call())
        return completed(tensors)

    def _spread(
        self,
        call: str,
        tensors: Sequence[torch.Tensor],
        root: int,
        named: bool,
        site: Site | None = None,
    ) -> None:
        word = (Site() if site is None else site).word()
        alone = ElasticGroup.alone()  # in another rank's code, where nobody else is heard
        if named and alone and not Site.tells(word):
            self.require(root, call)

        def launch(now: Communicator, staged: list[torch.Tensor]) -> list[Work]:
            at = stand_ins(self.ranks, now.members)[root]
            inner = options("BroadcastOptions", rootRank=at)
            *words, last = staged
            works = [now.group.broadcast([one], inner) for one in words]
            if named and self.ranks[root] not in now.members:
                least = options("AllreduceOptions", reduceOp=ReduceOp.MIN)
                works.append(now.group.allreduce([last], least))
            return works

        def deliver(staged: list[torch.Tensor], among: Communicator) -> None:
            *words, last = staged
            lost = not alone and self.ranks[root] not in among.members
            if named and lost and not Site.tells(last):
                raise _nobody(call, self.ranks[root])
            for target, result in zip(tensors, words, strict=True):
                if site is not None and not alone and not lost and self.rank() != root:
                    site.hear(target, result)
                target.detach().copy_(result)
            if site is not None and lost:
                site.stand_in = among.members[stand_ins(self.ranks, among.members)[root]]

        self._transact(asked(call, tensors, root), [*tensors, word], launch, deliver)

    def scatter(self, outs: Any, ins: Any, opts: Any) -> Work:
        if not self.protected or self._refused(opts):
            return self.native.scatter(outs, ins, opts)
        root, out = int(opts.rootRank), outs[0]
        self.require(root, "scatter")
        parts = ins[0] if self.rank() == root else [out] * self.size()
        whole = [part.detach().clone() for part in parts]
        self._spread("scatter", whole, root, named=True)
        put(out, whole[self.rank()])
        return completed(outs)

    def require(self, virtual: int, call: str) -> None:
        """Raise PeerLost if the `virtual` rank of this group is no longer a member."""
        if self.fabric is None:
            return
        rank = self.ranks[virtual]
        if rank not in self.fabric.view.live_ranks:
            raise _nobody(call, rank)

    # --------------------------------------------------------------------------- point to point

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        return self._point("send", tensors, peer, tag)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        return self._point("recv", tensors, peer, tag)

    def _start_coalescing(self, device: torch.device) -> None:
        """torch asks for it where a backend can do it, which of the two NCCL can."""
        if self.protected:
            raise RuntimeError(f"dist.batch_isend_irecv {UNSERVED}")
        super()._start_coalescing(device)

    def _point(self, call: Call, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        if self.pairs is None:
            work: Work = getattr(self.native, call)(tensors, peer, tag)
            return work
        if not all(tensor.is_cpu for tensor in tensors):
            raise RuntimeError(f"dist.{call} {UNSERVED}")
        if not ElasticGroup.alone():
            return self.pairs.post(call, tensors, self.ranks[peer], tag)
        if call == "recv":
            raise PeerLost("dist.recv: another rank's code is executed again, and nobody sends")
        return completed(tensors)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Work:
        if self.pairs is None:
            return self.native.recv_anysource(tensors, tag)
        raise PeerLost("dist.recv without a source cannot be protected: name the rank to hear")


def as_one(original: Callable[..., T]) -> Callable[..., T]:
    """`dist.all_gather_object` and its kind: sizes first, then contents, from the same members."""
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> T:
        group = parameters.bind(*args, **kwargs).arguments.get("group") or GroupMember.WORLD
        if not isinstance(group, ElasticGroup) or group.transactions is None:
            return original(*args, **kwargs)
        return group.transactions.call(lambda: original(*args, **kwargs))

    return wrapper


def _nobody(call: str, rank: int) -> PeerLost:
    return PeerLost(f"dist.{call}: rank {rank} is lost, and nobody can speak for it")
