"""The inputs of a lost rank to reductions between transactions.

    num_tokens += (labels != IGNORED).sum()              # in every microbatch
    ...
    dist.all_reduce(num_tokens)                          # after the last one

The lost rank's microbatches were executed by survivors, who know what its variables, and numbers
that an iteration makes anew, are worth at the end of the last one. What a rank gives to a reduction
is looked for among its own there: the same ones of the lost rank are what that rank would have
given. Where this is not known, or not unique, the result is over the survivors, and the run says
so, once for each place in the script.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ft_collectives.communicators.script_modes import is_mode_asked
from ft_collectives.process_group.substitution_policy import FindLostInputs, LostInputs
from recoverrun.worker.context.slot_context import Context, Key
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import KnownState
from recoverrun.worker.step.worker_state import WorkerState

LARGEST = 64
"""Elements of what is told: more than these are no counts."""

STEERED = (
    "the {call} at {place} is over {some} of {all} ranks while others are lost: what the script "
    "computes from it may differ"
)

PACKAGES = ("torch", "recoverrun", "ft_collectives")
"""Whose frames stand between a collective and the script."""


class LostOperands:
    """Answers what protected groups ask where members are lost (`SubstitutionPolicy`)."""

    def __init__(self, worker: WorkerState, executor: Executor) -> None:
        self._worker = worker
        self._executor = executor
        self._said: set[str] = set()  # places of which it was said

    def find(self, ranks: Sequence[int], tensors: Sequence[torch.Tensor]) -> FindLostInputs | None:
        """The inputs of the lost ones of `ranks` where this one gives `tensors`."""
        worker = self._worker
        if not worker.lost or not worker.guarantee.exact or worker.acting:
            return None

        def inputs_of_lost(members: Sequence[int]) -> LostInputs:
            lost = [rank for rank in ranks if rank not in members]
            return self._of_lost(lost, tensors, members)

        return inputs_of_lost

    def _of_lost(
        self, lost: Sequence[int], tensors: Sequence[torch.Tensor], members: Sequence[int]
    ) -> LostInputs:
        """The inputs of lost ranks for which this rank speaks: of the members that have the same
        shards the first one does.
        """
        worker, this_rank = self._worker, self._worker.env.rank
        layout, captures = worker.protection.layout, self._executor.captures
        inputs, sure, flags = list[list[torch.Tensor]](), True, False
        after = captures.points[-1] if captures.points else None
        if after is None or after.kind != "after":
            return LostInputs()
        tops = [one for one in captures.points if one.kind == "top" and one.step == after.step]
        began = _numbers(tops[0].values) if tops else {}
        earlier = [
            _numbers(_apart(one.made)) for one in captures.points[:-1] if one.kind == "after"
        ]
        began |= _steady(earlier)
        for rank in lost:
            shard = layout.place(rank)[1]
            speakers = [one for one in members if layout.place(one)[1] == shard]
            there = self._executor.lost.get(rank)
            state = there.states.get(after.point) if there is not None else None
            if state is None or state.assumed or speakers[:1] != [this_rank]:
                continue
            given = [_as_given(tensor, after, state, began) for tensor in tensors]
            known = [guess for guess in given if guess is not None]
            if len(known) == len(given):
                inputs.append([guess.input for guess in known])
                sure &= all(guess.moved for guess in known)
                flags |= any(guess.flags for guess in known)
        return LostInputs(inputs, sure, flags)

    def partial(self, call: str, members: int, of: int) -> None:
        """A result of `call` is over so many ranks of a group."""
        worker = self._worker
        if worker.acting or not worker.guarantee.exact or _of_reducer(call):
            return
        place = in_words(*script_place())
        if place in self._said:
            return
        self._said.add(place)
        words = STEERED.format(call=call, place=place, some=members, all=of)
        worker.guarantee.steer(words)


Numbers = Mapping[Key, torch.Tensor]


class Guess(NamedTuple):
    """An operand of another rank, by the variable that tells it."""

    input: torch.Tensor

    moved: bool
    """False if that variable rests in this transaction: one such as the size of a batch may happen
    to have the same value.
    """

    flags: bool  # see `LostInputs`


def _as_given(
    tensor: torch.Tensor, mine: Context, state: KnownState, began: Numbers
) -> Guess | None:
    """The input of the rank at `state` where this one, at `mine`, gives `tensor`; `began` are our
    own values at the beginning of the transaction.
    """
    if tensor.numel() > LARGEST or tensor.is_complex() or not tensor.numel():
        return None
    theirs_made = state.context.made
    made = {name: value for name, value in mine.made.items() if name in theirs_made}
    ours = {**_numbers(mine.values), **_numbers(_apart(made))}
    theirs = {**_numbers(state.context.values), **_numbers(_apart(theirs_made))}
    moved = {key: value for key, value in ours.items() if not _rests(began.get(key), value)}
    for known in (moved, ours):
        whole = _whole(tensor, known, theirs, state)
        if whole is not None:
            given = whole.to(tensor.dtype).view(tensor.shape)
            return Guess(given, known is moved, _holds_flags(tensor))
    return None


def _apart(made: Mapping[str, Any]) -> dict[Key, Any]:
    """The numbers of an iteration, by names that are no variable's of another function."""
    return {("made", name): value for name, value in made.items()}


def _steady(earlier: Sequence[Numbers]) -> dict[Key, torch.Tensor]:
    """The numbers that iterations before this one have made alike."""
    first = earlier[0] if earlier else {}
    return {
        key: value
        for key, value in first.items()
        if all(key in one and _rests(one[key], value) for one in earlier)
    }


def _holds_flags(tensor: torch.Tensor) -> bool:
    """True if an element is a zero or a one: too many variables are, to tell which it comes of."""
    return bool(((tensor == 0) | (tensor == 1)).any())


def _rests(before: torch.Tensor | None, now: torch.Tensor) -> bool:
    return before is not None and before.shape == now.shape and torch.equal(before, now)


def _whole(
    tensor: torch.Tensor, own: Numbers, theirs: Numbers, state: KnownState
) -> torch.Tensor | None:
    """The lost rank's input for `tensor`, by one variable or element by element."""
    flat = _flat(tensor)
    whole = _told(flat, tensor.dtype, own, theirs, state)
    if whole is not None or len(flat) == 1:
        return whole
    parts = [_told(one.view(1), tensor.dtype, own, theirs, state) for one in flat]
    known = [part for part in parts if part is not None]
    return torch.cat(known) if len(known) == len(parts) else None


def _told(
    flat: torch.Tensor, dtype: torch.dtype, own: Numbers, theirs: Numbers, state: KnownState
) -> torch.Tensor | None:
    """Their values of the variables that are `flat` here, if those are one and the same."""
    keys = [
        key
        for key, value in own.items()
        if value.numel() == len(flat) and torch.equal(value.to(dtype).to(flat.dtype), flat)
    ]
    if not keys or any(key in state.unknown or key not in theirs for key in keys):
        return None
    values = [theirs[key] for key in keys]
    return values[0] if all(torch.equal(one, values[0]) for one in values) else None


def _numbers(values: Mapping[Key, Any]) -> dict[Key, torch.Tensor]:
    found: dict[Key, torch.Tensor] = {}
    for key, value in values.items():
        if type(value) in (int, float):
            found[key] = torch.tensor([float(value)], dtype=torch.float64)
        elif isinstance(value, torch.Tensor) and 0 < value.numel() <= LARGEST:
            if not value.is_complex():
                found[key] = _flat(value)
    return found


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float64).reshape(-1)


def _of_reducer(call: str) -> bool:
    """True if DDP's reducer asks which parameters any rank has used (reducer.cpp,
    `all_reduce_local_used_map`). `Gradients` counts that with what it reduces; nothing follows
    from DDP's own count.

    It asks from C++, within the backward: no function of `torch.distributed` stands in between.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and _module(frame).partition(".")[0] in PACKAGES[1:]:
        frame = frame.f_back
    return call == "all_reduce" and (frame is None or _module(frame).startswith("torch.autograd."))


def _module(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))


def script_place() -> tuple[str, int]:
    """The file and the line of the script that makes the present call."""
    at: Any = sys._getframe(1)
    frame, found = at, None
    while at is not None:
        if _module(at).partition(".")[0] not in PACKAGES:
            found = found or at
        elif found is not None and is_mode_asked(at):
            found = None  # it is the mode's code, and the call lies further out
        elif found is not None:
            break
        at = at.f_back
    frame = found or frame
    return frame.f_code.co_filename, frame.f_lineno


def in_words(filename: str, line: int) -> str:
    return f"{filename.rpartition('/')[2]}:{line}"
