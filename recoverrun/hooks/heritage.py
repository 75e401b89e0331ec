"""What is known of a lost rank, and how it is kept true from step to step.

All slots run the same code on data of equal shapes. So a lost rank's random streams move as far as
our own over the same microbatches (`rng.jump`), and what differs between the ranks but never
changes (`rank`, say) stays as it was. What differs *and* moves, such as the position of a
hand-written loader, moves by the script's own rules, which only its code knows: those values are
carried along a chain, from one execution of the region as that rank to the next. A survivor that
does not compute a microbatch itself then runs its forward pass to keep the chain whole
(`impersonate`).

Own captures are made at the same points as those that lost ranks left, so that the two compare.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recoverrun.hooks import rng
from recoverrun.hooks.context import Context, Path, differences, same
from recoverrun.hooks.data import NotReplayable

NUMBERS_MOVE = (
    "random numbers of Python or numpy, or single normal numbers, are drawn inside the step: "
    "the stream of another rank cannot be told from this one's"
)

Key = str | Path
"""A variable by name, or an attribute by path."""


@dataclass(slots=True)
class Heritage:
    """A lost rank, where both of us stood when it was last heard of, and its chain since."""

    rank: int
    theirs: Context
    mine: Context
    earlier: tuple[Context, Context] | None = None  # theirs and mine at the top before
    fixed: dict[Key, Any] = field(default_factory=dict)  # differs, never moves
    moving: dict[Key, Any] = field(default_factory=dict)  # differs and moves: as of `index`
    step: int = 0
    index: int = 0  # the microbatch of `step` before which `moving` holds

    def settle(self, captures: Iterable[Context], step: int, needed: frozenset[str]) -> None:
        """Tell what is the rank's from what is the step's, by our own `captures` (oldest first).

        We are in `step`. Raises NotReplayable if a value that moves cannot be told for its top.
        """
        own = list(captures)
        tops = [one for one in own if one.kind == "top" and one.step <= step]
        self.step, self.index = self.theirs.step, 0
        differ = differences(self.theirs, self.mine)
        both: list[tuple[Key, Any]] = [*differ.names.items(), *differ.attributes.items()]
        for key, value in both:
            if isinstance(key, str) and self._begins_anew(key, own):
                continue
            if not _moves(key, own):
                self.fixed[key] = value
            elif not isinstance(key, str) or key in needed or type(value) is int:
                self.moving[key] = value
        if self.moving and not (tops and self._reaches(tops[-1])):
            names = ", ".join(_named(key) for key in self.moving)
            raise NotReplayable(f"{names} differs between ranks and moves outside of the loop body")

    def _begins_anew(self, name: str, own: list[Context]) -> bool:
        """Does every step set `name` to the same value on all ranks before it begins?"""
        if self.earlier is None:
            return False
        theirs, mine = self.earlier
        if name not in mine.names or not same(theirs.names.get(name), mine.names[name]):
            return False
        tops = [one for one in own if one.kind == "top" and name in one.names]
        return all(same(one.names[name], mine.names[name]) for one in tops)

    def _reaches(self, top: Context) -> bool:
        """Do the moving values hold at the top of the step that we are in?"""
        if self.theirs.point == top.point:
            return True
        ahead = self.theirs.kind == "ahead" and self.theirs.step == top.step
        return ahead and all(
            same(_value(self.mine, key), _value(top, key)) for key in self.moving
        )

    def streams_at(self, own: rng.Streams) -> rng.Streams:
        """The rank's streams at the point where ours are `own`. Raises NotReplayable."""
        moved = rng.jump(self.theirs.streams, self.mine.streams, own)
        if moved is None:
            raise NotReplayable(NUMBERS_MOVE)
        return moved

    def differing(self, index: int) -> dict[Key, Any]:
        """What to put in place before microbatch `index`."""
        assert not self.moving or self.index == index, f"the chain is at {self.index}, not {index}"
        return {**self.fixed, **self.moving}

    def advance(self, names: Mapping[str, Any], values: Mapping[Key, Any]) -> None:
        """Microbatch `index` was executed as the rank; `values`: what moves, as it is now."""
        self.moving = {key: values.get(key, old) for key, old in self.moving.items()}
        self.index += 1

    def end_step(self) -> None:
        self.step += 1
        self.index = 0

    def follow(self, ahead: Context | None, top: Context) -> None:
        """A new step begins at our capture `top`; `ahead` is ours at the commit point before it.

        Raises NotReplayable if the rank can no longer be spoken for.
        """
        theirs = top.copy()
        theirs.streams = self.streams_at(top.streams)
        theirs.loaders = {
            number: self.theirs.loaders.get(number) or self.created(streams)
            for number, streams in top.loaders.items()
        }
        if self.moving:
            self._require_chain(ahead, top)
        for key, value in {**self.fixed, **self.moving}.items():
            if isinstance(key, str):
                theirs.names[key] = value
            else:
                theirs.attributes[key] = value
        self.earlier = None
        self.theirs, self.mine = theirs, top

    def _require_chain(self, ahead: Context | None, top: Context) -> None:
        """The chain must reach this step, and nothing may move between two steps."""
        broken = self.step != top.step or self.index
        still = ahead is not None and all(
            same(_value(ahead, key), _value(top, key)) for key in self.moving
        )
        if broken or not (still or self.theirs.point == top.point):
            names = ", ".join(_named(key) for key in self.moving)
            raise NotReplayable(f"{names} differs between ranks and moves between steps")

    def created(self, own: rng.Streams) -> rng.Streams:
        """Where the rank's streams would have stood as it made an iterator; ours were `own`."""
        moved = rng.jump(self.theirs.streams, self.mine.streams, own)
        return own if moved is None else moved


def _moves(key: Key, own: list[Context]) -> bool:
    """Has our own value changed from one capture to another?"""
    values = [_value(one, key) for one in own if _has(one, key)]
    return any(not same(one, other) for one, other in zip(values, values[1:], strict=False))


def _has(context: Context, key: Key) -> bool:
    return key in (context.names if isinstance(key, str) else context.attributes)


def _value(context: Context, key: Key) -> Any:
    return context.names.get(key) if isinstance(key, str) else context.attributes.get(key)


def _named(key: Key) -> str:
    return key if isinstance(key, str) else ".".join(key)
