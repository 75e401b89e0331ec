"""Counts of all ranks' tokens, by which a script divides its gradients after the last backward.

    num_tokens += (labels != IGNORED).sum()              # in every microbatch
    ...
    dist.all_reduce(num_tokens)                          # after the last one
    scale_grads(model, world_size / num_tokens)

Such a *tally* begins every step at zero and grows before each backward. A lost rank's part in it is
what re-executed microbatches add to it, so it is reduced as gradients are: each rank's own sum is
kept, what it makes up is added, and the sum of all goes through the same reductions and the same
vote (`Bucket`). The script's own `all_reduce` is the commit point, and gets that sum.

In the first step it is found out which variables, or attributes of the script's own objects, are
told: by identity, or by value where they are put into a new tensor. If gradients are multiplied
after ranks have told each other anything else, nothing is protected, with a sentence.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ft_collectives.reduce import Bucket
from recoverrun.hooks.context import Key, resolve
from recoverrun.hooks.looping import find_frame
from recoverrun.hooks.reading import Reading

if TYPE_CHECKING:
    from recoverrun.hooks.session import Session

BUCKET = "tallies"
LARGEST = 64
"""Elements of what is told: more than these are no counts."""

LATE = "{} is counted after the backward, where nobody counts for a lost rank"
UNKNOWN = (
    "gradients are multiplied by the script after the ranks have told each other something that "
    "is not a sum over the step's microbatches by itself: a lost rank's part in it cannot be told"
)
RETIRED = "{} is told otherwise than in the first step: a lost rank's part in it cannot be told"
ON_DEVICE = "counts that divide gradients are not served yet on an accelerator"
LOST_FIRST = (
    "recoverrun: a rank was lost in the first step, in which it is not known yet what the ranks "
    "tell each other about it; the step cannot be completed"
)


@dataclass(frozen=True, slots=True)
class Told:
    """One all_reduce of the first step after its last backward: which tallies it sums, if known."""

    keys: tuple[Key, ...]
    why: str  # not known


class Tallies:
    """Which sums the script tells, this rank's part in them, and their totals."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self.reading = Reading(session)
        self._told: list[tuple[int, Told]] = []  # in the first step, since its last backward
        self._before: dict[Key, torch.Tensor] = {}  # as that backward ended
        self._asked: list[tuple[Key, ...]] = []  # of every step
        self._unanswered: list[tuple[Key, ...]] = []
        self.keys: tuple[Key, ...] = ()
        self._own = self._extra = torch.empty(0, dtype=torch.float64)
        self._totals: torch.Tensor | None = None
        self._sizes: list[int] = []
        self._first = True
        self._between = False  # in the first step ranks summed before its last backward, too
        self._heard = 0
        session.impersonator.counted = self.counted
        session.impersonator.made_up = self.made_up

    # --------------------------------------------------------------------------- what is told

    def all_reduce(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`dist.all_reduce` that knows the tallies."""

        def wrapper(
            tensor: torch.Tensor,
            op: Any = dist.ReduceOp.SUM,
            group: Any = None,
            async_op: Any = False,
        ) -> Any:
            session = self._session
            if session.machine is None or session.acting:
                return original(tensor, op, group, async_op)
            if session.promise is None and session.dirty:
                told = self._recognised(tensor, op, group)
                self._told.append((session.runtime.heard, told))
            if self.keys and session.dirty and (self.reading.whole or not self._between):
                session.settle()
            total = self._total(tensor, op, group) if self._unanswered else None
            if total is None:
                return original(tensor, op, group, async_op)
            work = original(total, dist.ReduceOp.SUM, group, async_op)
            assert session.layout is not None, "protected"
            total /= len(session.layout.replicas)  # all of which have told it
            whole = tensor.is_floating_point() or tensor.is_complex()
            tensor.detach().copy_((total if whole else total.round()).view(tensor.shape))
            return work

        return wrapper

    def _recognised(self, tensor: torch.Tensor, op: Any, group: Any) -> Told:
        """Which tallies is `tensor`, in the first step?"""
        if op != dist.ReduceOp.SUM or tensor.numel() > LARGEST or not self._spans(group):
            return Told((), UNKNOWN)
        if not self._session.runtime.microbatches:
            return Told((), UNKNOWN)  # of no loop that is known
        grown = self._candidates()
        flat = _flat(tensor)
        visible = self._visible()
        keys = [key for key in grown if _value(visible, key) is tensor]
        if not keys:
            keys = [key for key, value in grown.items() if _equal(value, tensor)]
        if not keys:
            found = [
                [key for key, value in grown.items() if len(value) == 1 and _equal(value, one)]
                for one in tensor.detach().reshape(-1)
            ]
            if all(len(one) == 1 for one in found) and len(flat):
                keys = [one[0] for one in found]
        elif len(keys) > 1:
            return Told((), UNKNOWN)  # by coincidence: who knows which one it is
        if not keys:
            return Told((), UNKNOWN)
        for key in keys:
            before = self._before.get(key)
            if before is None or not torch.equal(before, grown[key]):
                return Told((), LATE.format(_name(key)))
        return Told(tuple(keys), "")

    def _spans(self, group: Any) -> bool:
        """Does `group` have the same shards of every replica?"""
        layout = self._session.layout
        assert layout is not None, "protected"
        known = group is None or group is dist.group.WORLD
        ranks = range(layout.world_size) if known else dist.get_process_group_ranks(group)
        places = {layout.place(rank) for rank in ranks}
        shards = {shard for _, shard in places}
        return len(places) == len(shards) * len(layout.replicas)

    def _candidates(self) -> dict[Key, torch.Tensor]:
        """Numbers that began the step at zero, as they are now."""
        runtime = self._session.runtime
        if not runtime.microbatches:
            return {}
        first = runtime.microbatches[0]
        visible = self._visible()
        region = first.turn.loop
        keys: list[Key] = sorted(region.carried & first.names.keys())
        keys += sorted(first.attributes)
        starts: dict[Key, Any] = {}
        starts.update(first.names)
        starts |= dict(first.attributes.items())
        return {
            key: now
            for key in keys
            if (start := _numbers(starts[key])) is not None
            and not start.any()
            and (now := _numbers(_value(visible, key))) is not None
        }

    def _visible(self) -> dict[str, Any]:
        """Variables around the microbatches, as they are now."""
        turn = self._session.runtime.microbatches[-1].turn
        frame = find_frame(turn.frame_id, sys._getframe(1))
        if frame is None or turn.loop.module_level:
            return turn.globals
        local = frame.f_locals
        visible = {**turn.globals, **local}
        if sys.version_info < (3, 13):
            local.clear()  # the frame would keep every local alive until the next call
        return visible

    # --------------------------------------------------------------------------- the first step

    def backward_done(self) -> None:
        """A backward of the script's own has ended."""
        session = self._session
        if session.promise is None:
            if session.strategy is not None and session.strategy.early:
                self.reading.watch()
                self._between |= bool(self._told)
                self._told.clear()
                self._heard = session.runtime.heard
                self._before = self._candidates()
        elif self.keys and session.runtime.microbatches:
            self._before = self._now()

    def found(self) -> dict[str, Any]:
        """What this rank saw in the first step, for the others."""
        factor = self.reading.found()
        why = ""
        if factor is not None and factor != 1:
            before = [one for at, one in self._told if at < self.reading.heard]
            unknown = [one.why for one in before if one.why]
            if self.reading.heard - self._heard > len(before):
                unknown.append(UNKNOWN)  # by other calls
            why = unknown[0] if unknown else ""
        told = [list(map(_listed, one.keys)) for _, one in self._told if one.keys]
        return {"factor": factor, "why": why, "told": told}

    def judge(self, said: Mapping[int, dict[str, Any]]) -> str:
        """What all ranks saw: returns why nothing can be protected, or ""."""
        session = self._session
        why = self.reading.judge({rank: one["factor"] for rank, one in said.items()})
        why = why or next((one["why"] for _, one in sorted(said.items()) if one["why"]), "")
        if why or not self.reading.scaled:
            return why
        told = [one["told"] for _, one in sorted(said.items())]
        if any(one != told[0] for one in told):
            return UNKNOWN
        assert session.reducer is not None, "protected"
        if told[0] and session.reducer.channel.over is not None:
            return ON_DEVICE
        self._asked = [one.keys for _, one in self._told if one.keys]
        self.keys = tuple(dict.fromkeys(key for keys in self._asked for key in keys))
        return ""

    def judge_alone(self) -> None:
        """Others have concluded without us, or nothing can be protected: they saw what we saw."""
        self.judge({self._session.env.rank: self.found()})

    # --------------------------------------------------------------------------- every step

    def settling(self) -> None:
        """The commit point, before anything is reduced that is not final yet."""
        session = self._session
        if self._first:
            self.reading.concluded()
            return
        self.reading.settling()
        if not self.keys or session.refusal:
            return
        starts = session.runtime.microbatches[0] if session.runtime.microbatches else None
        now = self._now() if starts is not None else {}
        known: dict[Key, Any] = {}
        if starts is not None:
            known.update(starts.names)
            known |= dict(starts.attributes.items())
        for key in self.keys:
            start = _numbers(known.get(key))
            even = key in now and torch.equal(now[key], self._before.get(key, torch.empty(0)))
            if not even or start is None or start.any():
                self._retire(key)
                return
        if self._unanswered:
            self._retire(self._unanswered[0][0])
            return
        self._own = torch.cat([now[key] for key in self.keys])
        self._sizes = [now[key].numel() for key in self.keys]
        if len(self._extra) != len(self._own):
            self._extra = torch.zeros_like(self._own)
        assert session.reducer is not None, "protected"
        if BUCKET not in session.reducer.buckets:
            session.reducer.register(
                Bucket(
                    key=BUCKET,
                    size=len(self._own),
                    dtype=torch.float64,
                    fill=self._fill,
                    deliver=self._deliver,
                )
            )

    def _fill(self, staging: torch.Tensor) -> None:
        staging.copy_(self._own + self._extra)

    def _deliver(self, total: torch.Tensor) -> None:
        self._totals, self._unanswered = total.clone(), list(self._asked)

    def end_step(self) -> None:
        """The step is committed, or was dropped."""
        self._first = self._session.promise is None  # a first step that was dropped proves nothing
        self._extra = torch.zeros_like(self._extra)
        self.reading.delivered()

    def _retire(self, key: Key) -> None:
        self._session.refuse(RETIRED.format(_name(key)))
        self.keys, self._asked, self._unanswered = (), [], []

    def _now(self) -> dict[Key, torch.Tensor]:
        visible = self._visible()
        values = {key: _numbers(_value(visible, key)) for key in self.keys}
        return {key: value for key, value in values.items() if value is not None}

    def _total(self, tensor: torch.Tensor, op: Any, group: Any) -> torch.Tensor | None:
        """The sum over all microbatches of what `tensor` has of this rank's."""
        assert self._totals is not None, "delivered"
        if op != dist.ReduceOp.SUM or not self._spans(group):
            return None
        owns = dict(zip(self.keys, self._own.split(self._sizes), strict=True))
        totals = dict(zip(self.keys, self._totals.split(self._sizes), strict=True))
        for place, keys in enumerate(self._unanswered):
            if _equal(torch.cat([owns[key] for key in keys]), tensor):
                del self._unanswered[place]
                return torch.cat([totals[key] for key in keys])
        return None

    # --------------------------------------------------------------------------- making up

    def require_known(self) -> None:
        """Raises where a loss in the first step would be made up with a wrong factor."""
        if self._first and self.keys:
            raise RuntimeError(LOST_FIRST)

    def counted(self, names: Mapping[str, Any]) -> torch.Tensor | None:
        """The tallies in the namespace of a microbatch that is being made up."""
        if not self.keys:
            return None
        values = [_numbers(_value(names, key)) for key in self.keys]
        found = [value for value in values if value is not None]
        return torch.cat(found) if len(found) == len(values) else None

    def made_up(self, before: torch.Tensor | None, after: torch.Tensor | None) -> None:
        """A microbatch was made up, and its tokens were counted."""
        if before is not None and after is not None and len(after) == len(self._extra):
            self._extra += after - before


def _value(visible: Mapping[str, Any], key: Key) -> Any:
    if isinstance(key, str):
        return visible.get(key)
    owner = resolve(visible, key)
    return None if owner is None else getattr(owner, key[-1], None)


def _numbers(value: Any) -> torch.Tensor | None:
    """A number or a small tensor as a row of float64, which is exact for all counts."""
    if type(value) in (int, float):
        return torch.tensor([float(value)], dtype=torch.float64)
    if type(value) is torch.Tensor and 0 < value.numel() <= LARGEST and not value.is_complex():
        return _flat(value)
    return None


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float64, copy=True).reshape(-1)


def _equal(value: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Is `tensor` made of `value`, in its own type?"""
    return torch.equal(_flat(value.to(tensor.dtype)), _flat(tensor))


def _name(key: Key) -> str:
    return key if isinstance(key, str) else ".".join(key)


def _listed(key: Key) -> list[str]:
    return [key] if isinstance(key, str) else ["", *key]
