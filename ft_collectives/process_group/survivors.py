"""Collectives of a protected group, carried out among its surviving members.

`ElasticGroup` has the methods that torch calls; here is what they come to: what is staged, which
operations of gloo run on it, and what each rank gets where members are lost (docs/collectives.md).
All ranks of a group are named by their place in it (`root`), as torch does in backends.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ft_collectives.communicators.c10d import ReduceOp, Work, options
from ft_collectives.communicators.channel import Communicator
from ft_collectives.communicators.errors import PeerLost
from ft_collectives.communicators.script_modes import aside
from ft_collectives.process_group.argument_checks import check_operation
from ft_collectives.process_group.call_check import NONE, CallSignature, signature_of
from ft_collectives.process_group.results import Give, finish, fold_by, put
from ft_collectives.process_group.substitutes import (
    CallSite,
    answer_of,
    answered,
    roots_are_substituted,
    substitutes_of,
)
from ft_collectives.process_group.substitution_policy import SubstitutionPolicy
from ft_collectives.process_group.two_phase import Deliver, Fold, Launch, TwoPhaseOperations

JOINT = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "gather", "all_to_all")
"""Calls whose result depends on the inputs of all members."""


class SurvivorCollectives:
    """The collectives of one group of `operations.ranks` (global), lost ones included."""

    def __init__(self, operations: TwoPhaseOperations, policy: SubstitutionPolicy) -> None:
        self.operations = operations
        self.policy = policy
        self.fabric = operations.fabric
        self.ranks = operations.ranks
        self.size = len(self.ranks)
        self.place = self.ranks.index(self.fabric.rank)

    def run(
        self,
        signature: CallSignature,
        inputs: Sequence[torch.Tensor],
        launch: Launch,
        deliver: Deliver,
        fold: Fold | None = None,
    ) -> None:
        """Carry out one collective in two phases, with what the policy knows of lost ranks.

        Raises what `TwoPhaseOperations.run` raises.
        """
        if self.policy.replaying():
            us = Communicator(members=(self.fabric.rank,))
            deliver([self.policy.result_alone(tensor.detach().clone()) for tensor in inputs], us)
            return
        if inputs and not answered():
            self.policy.on_exchange()
        known = answered()  # the caller knows what lost members would have given
        find_lost = (
            None if known or fold is None else self.policy.find_lost_inputs(self.ranks, inputs)
        )
        among = self.operations.run(
            signature, inputs, launch, deliver, find_lost=find_lost, fold=fold
        )
        whole = known or (among.whole and not among.guessed) or roots_are_substituted()
        if not whole and signature.call in JOINT:
            self.policy.on_partial(signature.call, len(among.members), self.size)

    def reduce(
        self, call: str, tensors: Sequence[torch.Tensor], opts: Any, root: int = NONE
    ) -> None:
        """Reduce `tensors` in place, by the operation of `opts` (SUM without one), on all members.

        Raises RuntimeError for operations that gloo does not have for these types.
        """
        op = getattr(opts, "reduceOp", ReduceOp.SUM)
        check_operation(op, tensors)
        average = op == ReduceOp.AVG
        inner = options("AllreduceOptions", reduceOp=ReduceOp.SUM if average else op)

        def launch(now: Communicator, staged: list[torch.Tensor]) -> list[Work]:
            return [now.group.allreduce([one], inner) for one in staged]

        def deliver(staged: list[torch.Tensor], among: Communicator) -> None:
            for target, result in zip(tensors, staged, strict=True):
                finish(result, op, among, self.size)
                target.detach().copy_(result)

        self.run(signature_of(call, tensors, root, op), tensors, launch, deliver, fold_by(op))

    def gather(self, source: torch.Tensor, give: Give, root: int = NONE) -> None:
        """Give one tensor for every rank, each of the shape of `source`, to `give`.

        For a lost rank that is what `answering` knows of it, else its substitute's tensor.
        """
        count, shape, size = source.numel(), source.shape, self.size
        room = max(count, 1)  # gloo gathers something
        flat = source.new_zeros(room)
        flat[:count] = source.detach().reshape(-1)
        slots = flat.new_zeros(size * room)

        def launch(now: Communicator, staged: list[torch.Tensor]) -> list[Work]:
            outs = list(staged[1].split(room))[: len(now.members)]
            return [now.group.allgather([outs], [staged[0]])]

        def deliver(staged: list[torch.Tensor], among: Communicator) -> None:
            parts = [staged[0]] if among.group is None else list(staged[1].split(room))
            sources = substitutes_of(self.ranks, among.members)
            given = [parts[at][:count].view(shape) for at in sources]
            for place, rank in enumerate(self.ranks):
                known = None if rank in among.members else answer_of(rank)
                if known is not None:
                    given[place] = known.to(parts[0]).view(shape)
            give(given)

        call = "all_gather" if root == NONE else "gather"
        self.run(signature_of(call, [source], root), [flat, slots], launch, deliver)

    def exchange(self, outs: Sequence[torch.Tensor], ins: Sequence[torch.Tensor]) -> None:
        """Send `ins[r]` to every rank r and receive `outs[r]` from it; zeros from a lost rank.

        Shapes may differ from pair to pair, if both sides mean the same.
        """
        flat = [part.detach().reshape(-1) for part in ins]
        room = torch.zeros(sum(out.numel() for out in outs), dtype=outs[0].dtype)

        def launch(now: Communicator, staged: list[torch.Tensor]) -> list[Work]:
            live = [self.ranks.index(rank) for rank in now.members]
            source = torch.cat([staged[at] for at in live])
            wanted = [outs[at].numel() for at in live]
            offered = [staged[at].numel() for at in live]
            return [now.group.alltoall_base(staged[-1][: sum(wanted)], source, wanted, offered)]

        def deliver(staged: list[torch.Tensor], among: Communicator) -> None:
            received = staged[self.place] if among.group is None else staged[-1]
            for at, out in enumerate(outs):
                if self.ranks[at] in among.members:
                    put(out, received[: out.numel()])
                    received = received[out.numel() :]
                else:
                    out.detach().zero_()

        signature = CallSignature("all_to_all", room.dtype)  # sizes may differ from pair to pair
        self.run(signature, [*flat, room], launch, deliver)

    def spread(
        self,
        call: str,
        tensors: Sequence[torch.Tensor],
        root: int,
        named: bool,
        site: CallSite | None = None,
    ) -> None:
        """Broadcast `tensors` in place from `root`, or from its substitute if it is lost.

        `named`: the script means this very root. Then PeerLost is raised on all survivors where
        it is lost and nobody knows what it would send (`site`).
        """
        word = (CallSite() if site is None else site).word()
        alone = self.policy.replaying()  # another rank's code: no other member takes part
        if named and alone and not CallSite.tells(word):
            self.require(root, call)

        def launch(now: Communicator, staged: list[torch.Tensor]) -> list[Work]:
            at = substitutes_of(self.ranks, now.members)[root]
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
            if named and lost and not CallSite.tells(last):
                raise _nobody(call, self.ranks[root])
            for target, result in zip(tensors, words, strict=True):
                if site is not None and not alone and not lost:
                    if self.place == root:
                        site.speak(result)
                    else:
                        site.hear(target, result)
                target.detach().copy_(result)
            if site is not None and lost:
                site.substitute = among.members[substitutes_of(self.ranks, among.members)[root]]

        self.run(signature_of(call, tensors, root), [*tensors, word], launch, deliver)

    @aside
    def meet(self) -> tuple[int, ...]:
        """Wait for all members: the vote alone does that. Return their places in the group."""
        met: list[Communicator] = []
        self.run(
            CallSignature("barrier"),
            [],
            lambda now, staged: [],
            lambda staged, among: met.append(among),
        )
        return tuple(self.ranks.index(rank) for rank in met[0].members)

    def require(self, virtual: int, call: str) -> None:
        """Raise PeerLost if the `virtual` rank of this group is no longer a member."""
        rank = self.ranks[virtual]
        if rank not in self.fabric.view.live_ranks:
            raise _nobody(call, rank)


def _nobody(call: str, rank: int) -> PeerLost:
    return PeerLost(f"dist.{call}: rank {rank} is lost, and nobody can speak for it")
