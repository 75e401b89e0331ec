"""Results of the script's collectives, kept by one process and given to another in their place.

A process that takes the place of a lost rank runs the script from its first line, while the others
are long past it. Its first collectives are answered by what they gave to the others
(`recoverrun.worker.arrival.prologue_record`). Here is what each call asks for, in a form that both
sides know, and the place in `ElasticGroup` where it is kept or answered.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch

from ft_collectives.communicators.c10d import ReduceOp, Work
from ft_collectives.communicators.script_modes import aside
from ft_collectives.process_group.call_check import CallSignature, signature_of
from ft_collectives.process_group.results import completed

P = ParamSpec("P")


@dataclass(frozen=True, slots=True, eq=False)
class RequestedCall:
    """One call. `outputs` will hold its result, if all members of the group get the same."""

    signature: CallSignature
    outputs: tuple[torch.Tensor, ...] = ()


class RecordedGroup(Protocol):
    """A group whose calls are kept."""

    ranks: tuple[int, ...]
    record: "CallRecord | None"

    @property
    def protected(self) -> bool:
        """True if every call is complete as it returns."""


class CallRecord(Protocol):
    """Keeps results, and gives them in the place of a call. Of a process."""

    @property
    def open(self) -> bool:
        """False where nothing is kept."""

    def answers(self, group: RecordedGroup, asked: RequestedCall) -> bool:
        """True if `outputs` hold the result now, so that the call need not be made."""

    def note(self, group: RecordedGroup, asked: RequestedCall, work: Work) -> None:
        """The call was made, and `work` completes it."""


G = TypeVar("G", bound=RecordedGroup)


def recorded(
    ask: Callable[..., RequestedCall],
) -> Callable[[Callable[Concatenate[G, P], Work]], Callable[Concatenate[G, P], Work]]:
    """Decorate a method of a group, of which `ask` says what is asked for."""

    def around(method: Callable[Concatenate[G, P], Work]) -> Callable[Concatenate[G, P], Work]:
        def wrapper(self: G, /, *args: P.args, **kwargs: P.kwargs) -> Work:
            record = self.record
            if record is None or not record.open:
                return method(self, *args, **kwargs)
            asked = ask(*args, **kwargs)
            if record.answers(self, asked):
                return completed(list(asked.outputs))
            work = method(self, *args, **kwargs)
            record.note(self, asked, work)
            return work

        functools.update_wrapper(wrapper, method)
        return aside(wrapper)

    return around


# ----------------------------------------------------------------------------- what calls ask for


def all_reduce(tensors: list[torch.Tensor], opts: Any = None) -> RequestedCall:
    operation = getattr(opts, "reduceOp", ReduceOp.SUM)
    return RequestedCall(signature_of("all_reduce", tensors, operation=operation), tuple(tensors))


def reduce(tensors: list[torch.Tensor], opts: Any) -> RequestedCall:
    return RequestedCall(signature_of("reduce", tensors, int(opts.rootRank), opts.reduceOp))


def reduce_scatter(outs: Any, ins: Any, opts: Any = None) -> RequestedCall:
    operation = getattr(opts, "reduceOp", ReduceOp.SUM)
    tensors = [part for parts in ins for part in parts] if isinstance(outs, list) else [ins]
    return RequestedCall(signature_of("reduce_scatter", tensors, operation=operation))


def all_gather(outs: Any, ins: Any, opts: Any = None) -> RequestedCall:
    if isinstance(outs, torch.Tensor):
        return RequestedCall(signature_of("all_gather", [ins]), (outs,))
    slots = tuple(slot for slots in outs for slot in slots)
    return RequestedCall(signature_of("all_gather", ins), slots)


def gather(outs: Any, ins: Any, opts: Any) -> RequestedCall:
    return RequestedCall(signature_of("gather", ins, int(opts.rootRank)))


def all_to_all(*args: Any, **kwargs: Any) -> RequestedCall:
    return RequestedCall(CallSignature("all_to_all"))


def broadcast(tensors: list[torch.Tensor], opts: Any) -> RequestedCall:
    return RequestedCall(signature_of("broadcast", tensors, int(opts.rootRank)), tuple(tensors))


def scatter(outs: Any, ins: Any, opts: Any) -> RequestedCall:
    return RequestedCall(signature_of("scatter", outs, int(opts.rootRank)))
