"""Executing a region of the script again, as another rank (docs/injection.md, "Re-execution").

A microbatch is a pure function of (parameters, step, slot, index). To compute one of a lost slot,
this rank runs the script's own code for its own microbatch of the same index, with everything that
is the slot's put in its place: random streams, rank-dependent variables and attributes, data. All
that was touched is put back afterwards, and the script never knows.

Jumping ahead. All slots run the same code on data of equal shapes, so their streams move equally
far over the same microbatches. A lost rank's streams at any later point are therefore its last
known ones, advanced by what this rank's own streams moved in between (`rng.jump`); an integer that
differs between ranks and moves, such as a loader's position, moves by the same amount. What moves
and is neither makes the slot `inexact`: then its microbatches are made up with fresh data of the
survivor's own (equal-count), never with wrong ones.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recoverrun.hooks import rng
from recoverrun.hooks.context import (
    Context,
    Path,
    capture,
    differences,
    objects_of,
    put,
    resolve,
    same,
)
from recoverrun.hooks.data import NotReplayable
from recoverrun.hooks.runtime import Microbatch, ScriptRuntime, Shape, Turn, Unwind, find_frame
from recoverrun.hooks.script import ITEM_NAME, RUNTIME_NAME, Loop

KEPT_CAPTURES = 8
"""Own captures kept to compare a lost rank's with: it may have stopped a step or two earlier."""

NUMBERS_MOVE = (
    "random numbers of Python or numpy, or single normal numbers, are drawn inside the step: "
    "the stream of another rank cannot be told from this one's"
)


@dataclass(slots=True)
class Heritage:
    """A lost rank, where both of us stood when it was last heard of."""

    rank: int
    theirs: Context
    mine: Context
    draws_hint: int = 0


@dataclass(slots=True)
class Costume:
    """What a re-execution changed and has to put back."""

    streams: rng.Streams
    globals: dict[str, Any] | None = None
    changed_globals: dict[str, Any] = field(default_factory=dict)
    attributes: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)


class Impersonator:
    """Keeps own captures and the heritage of lost ranks, and executes regions as them."""

    def __init__(self, runtime: ScriptRuntime) -> None:
        self.runtime = runtime
        self.captures: dict[tuple[int, int, int], Context] = {}  # by point, oldest first
        self.heritage: dict[int, Heritage] = {}
        self.remains: dict[int, tuple[Context, ...]] = {}
        self.backwards_seen = 0
        self.fresh = False  # executing as ourselves, on fresh data

    # --------------------------------------------------------------------------- own captures

    def capture_top(self, step: int, attempt: int, turn: Turn) -> Context:
        """Our context as the first microbatch of `step` begins."""
        assert turn.streams is not None, "an iteration has begun"
        return self._keep(capture(
            step=step, attempt=attempt, kind="top", streams=turn.streams,
            names=_seen_by(turn.loop, turn.globals, turn.names), carried=turn.loop.carried,
            loaders=self._loaders(), modules=self.runtime.own_modules,
        ))

    def capture_ahead(self, step: int, shape: Shape) -> Context:
        """Our context for `step`, from the commit point before it."""
        turn = self.runtime.microbatches[-1].turn
        frame = find_frame(turn.frame_id, sys._getframe(1))
        names = turn.globals
        if frame is not None and not shape.region.module_level:
            local = frame.f_locals
            names = _seen_by(shape.region, turn.globals, local)
            if sys.version_info < (3, 13):
                local.clear()  # the frame would keep every local alive until the next call
        return self._keep(capture(
            step=step, attempt=0, kind="ahead", streams=rng.read(), names=names,
            carried=shape.region.carried, loaders=self._loaders(),
            modules=self.runtime.own_modules,
        ))

    def _loaders(self) -> dict[int, rng.Streams]:
        return {
            source.number: source.streams
            for source in self.runtime.sources
            if not getattr(source, "ended", False) and hasattr(source, "streams")
        }

    def _keep(self, context: Context) -> Context:
        self.captures[context.point] = context
        while len(self.captures) > KEPT_CAPTURES:
            del self.captures[next(iter(self.captures))]
        return context

    # --------------------------------------------------------------------------- heritage

    def inherit(self, rank: int, packed: tuple[bytes, ...]) -> None:
        """What lost `rank` left. Contexts that cannot be read are passed over."""
        if rank in self.remains:
            return
        contexts: list[Context] = []
        for one in packed:
            try:
                contexts.append(Context.unpack(one))
            except ValueError:
                continue  # torn or foreign: the other one serves
        self.remains[rank] = tuple(contexts)

    def knows(self, rank: int, step: int) -> bool:
        """Can we speak for lost `rank` in `step`?"""
        if rank in self.heritage:
            return True
        usable = [
            theirs for theirs in self.remains.get(rank, ())
            if theirs.step <= step and theirs.point in self.captures
        ]
        if not usable:
            return False
        theirs = max(usable, key=lambda one: one.point)
        mine = self.captures[theirs.point]
        self.heritage[rank] = Heritage(rank=rank, theirs=theirs, mine=mine)
        return True

    def forget(self, rank: int) -> None:
        """End a rehearsal: `rank` is alive and speaks for itself."""
        self.heritage.pop(rank, None)
        self.remains.pop(rank, None)
        for source in self.runtime.sources:
            source.forget(rank)

    def follow(self, top: Context) -> None:
        """A new step begins at our capture `top`: move every lost rank's context along.

        Raises NotReplayable with the rank that can no longer be spoken for exactly.
        """
        for rank in sorted(self.heritage):
            heir = self.heritage[rank]
            heir.theirs = self._moved(heir, top)
            heir.mine = top

    def _moved(self, heir: Heritage, top: Context) -> Context:
        moved = self._at(heir, top.streams, top.names, top.attributes, self._needed())
        moved.step, moved.attempt, moved.kind = top.step, top.attempt, top.kind
        moved.names = {**top.names, **moved.names}
        moved.attributes = {**top.attributes, **moved.attributes}
        moved.loaders = {
            number: self._created(heir, number, streams)
            for number, streams in top.loaders.items()
        }
        return moved

    def _needed(self) -> frozenset[str]:
        shape = self.runtime.shape
        return shape.region.live_in if shape is not None else frozenset()

    def _created(self, heir: Heritage, number: int, own: rng.Streams) -> rng.Streams:
        """Where the lost rank's streams stood, or would have, when iterator `number` was made."""
        known = heir.theirs.loaders.get(number)
        if known is not None:
            return known
        moved = rng.jump(heir.theirs.streams, heir.mine.streams, own, heir.draws_hint)
        return own if moved is None else moved

    def _at(
        self, heir: Heritage, streams: rng.Streams, names: Mapping[str, Any],
        attributes: Mapping[Path, Any], needed: frozenset[str],
    ) -> Context:
        """The lost rank's own values at the point where ours are `streams`, `names`, …

        Only what differs between the ranks. Raises NotReplayable if what the region reads
        (`needed`) cannot be told.
        """
        moved = rng.jump(heir.theirs.streams, heir.mine.streams, streams, heir.draws_hint)
        if moved is None:
            raise NotReplayable(NUMBERS_MOVE)
        differ = differences(heir.theirs, heir.mine)
        return Context(
            step=heir.theirs.step, attempt=heir.theirs.attempt, kind=heir.theirs.kind,
            streams=moved,
            names={
                name: _shifted(name, value, heir.mine.names[name], names)
                for name, value in differ.names.items()
                if name in needed or _is_position(value) or name not in names
                or same(names[name], heir.mine.names[name])
            },
            attributes={
                path: _shifted(path, value, heir.mine.attributes[path], attributes)
                for path, value in differ.attributes.items()
            },
            loaders=heir.theirs.loaders,
        )

    def created_at(self, number: int, rank: int) -> rng.Streams | None:
        """Where `rank`'s streams stood when it created its iterator `number`, if that is known."""
        heir = self.heritage.get(rank)
        return heir.theirs.loaders.get(number) if heir is not None else None

    # --------------------------------------------------------------------------- execution

    def execute(self, rank: int, index: int, shape: Shape) -> bool:
        """Compute microbatch `index` of the present step as lost `rank`.

        Returns whether the code reached its backward. Raises NotReplayable, or what the script's
        own code raises.
        """
        own = self.runtime.microbatches[index]
        heir = self.heritage[rank]
        self._require_quiet_numbers(own)
        seen = _seen_by(shape.region, own.turn.globals, own.names)
        other = self._at(heir, own.streams, seen, own.attributes, shape.region.live_in)
        costume = Costume(streams=rng.read())
        self.runtime.acting_rank = rank
        try:
            names = self._dress(own, other, shape, costume)
            for source, count in own.positions:
                source.seek(rank, count)
            rng.restore(other.streams)
            item = self._item_of(own, rank)
            return self._run(names, shape, item)
        finally:
            self.runtime.acting_rank = None
            self._undress(own, costume)

    def _require_quiet_numbers(self, own: Microbatch) -> None:
        """Python's and numpy's streams are read at the ends of a step only: they must not move."""
        now = rng.read()
        if (now.python, now.numpy) != (own.streams.python, own.streams.numpy):
            raise NotReplayable(NUMBERS_MOVE)

    def execute_fresh(self, index: int, shape: Shape) -> bool:
        """Compute one more microbatch as ourselves, on our own next data (equal-count)."""
        own = self.runtime.microbatches[index]
        saved = dict(own.turn.globals) if shape.region.module_level else None
        names = self._namespace(own, shape)
        self.fresh, self.runtime.acting_rank = True, self.runtime.own_rank
        try:
            return self._run(names, shape, self._item_of(own, self.runtime.own_rank))
        finally:
            self.fresh, self.runtime.acting_rank = False, None
            if saved is not None:
                _put_back(own.turn.globals, saved)

    def _namespace(self, own: Microbatch, shape: Shape) -> dict[str, Any]:
        """Where the region runs. Code at module level needs the true globals: functions that it
        calls read them.
        """
        if shape.region.module_level:
            own.turn.globals.update(_copied(own.names))
            return own.turn.globals
        return {**own.turn.globals, **_copied(own.names)}

    def _dress(
        self, own: Microbatch, other: Context, shape: Shape, costume: Costume
    ) -> dict[str, Any]:
        module = own.turn.globals
        if shape.region.module_level:
            costume.globals = dict(module)
        names = self._namespace(own, shape)
        visible = {**module, **own.names}
        for _, owner in objects_of(visible, self.runtime.own_modules):
            costume.attributes.append((owner, dict(vars(owner))))
        for path, value in {**own.attributes, **other.attributes}.items():
            owner = resolve(visible, path)
            if owner is not None:
                put(vars(owner), path[-1], value)
        for name, value in other.names.items():
            if name in shape.region.targets:
                continue
            put(names, name, value)
            if name not in own.names and names is not module:
                costume.changed_globals[name] = module[name]
                module[name] = names[name]  # functions that the region calls read it there
        return names

    def _undress(self, own: Microbatch, costume: Costume) -> None:
        module = own.turn.globals
        if costume.globals is not None:
            _put_back(module, costume.globals)
        module.update(costume.changed_globals)
        for owner, attributes in costume.attributes:
            _put_back(vars(owner), attributes)
        rng.restore(costume.streams)

    def _item_of(self, own: Microbatch, rank: int) -> Any:
        """The loop's item with what was drawn for it replaced by what `rank` would have drawn."""
        replaced: dict[int, Any] = {}
        for draw in own.draws:
            served = draw.source.serve(rank, draw.index)
            if own.item is draw.item:
                return served
            _pair(draw.item, served, replaced)
        return _substitute(own.item, replaced) if replaced else own.item

    def _run(self, names: dict[str, Any], shape: Shape, item: Any) -> bool:
        region = shape.region
        assert region.body_code is not None, f"{region.id} was refused: {region.refusal}"
        names[RUNTIME_NAME] = self.runtime
        self.backwards_seen = 0
        try:
            if region.item_code is not None:
                names[ITEM_NAME] = item
                exec(region.item_code, names)
            exec(region.body_code, names)
        except Unwind:
            pass
        return self.backwards_seen >= shape.backwards

    def backward_done(self, shape: Shape) -> None:
        """A backward inside a re-execution: after the last one there is nothing more to run."""
        self.backwards_seen += 1
        if self.backwards_seen >= shape.backwards:
            raise Unwind("backward")


def _seen_by(
    loop: Loop, module: Mapping[str, Any], local: Mapping[str, Any]
) -> dict[str, Any]:
    """What the body of `loop` may read: the module's variables, and those around it that it uses.

    Other variables of the function (a stopwatch, say) are nobody's business.
    """
    if loop.module_level:
        return dict(module)
    read = loop.live_in - loop.targets
    return {**module, **{name: local[name] for name in read if name in local}}


def _is_position(value: Any) -> bool:
    return type(value) is int


def _shifted(key: object, theirs: Any, then: Any, now: Mapping[Any, Any]) -> Any:
    """A value that differs between ranks, brought from `then` to `now` as our own moved."""
    if key not in now:
        return theirs
    present = now[key]
    if same(present, then):
        return theirs
    if type(theirs) is int and type(then) is int and type(present) is int:
        return theirs + present - then
    raise NotReplayable(f"{_named(key)} differs between ranks and changes within the step")


def _named(key: object) -> str:
    return ".".join(key) if isinstance(key, tuple) else str(key)


def _copied(names: dict[str, Any]) -> dict[str, Any]:
    """Snapshots may be executed more than once: what a body changes in place is copied."""
    return {
        name: value.copy() if type(value) in (list, dict, set) else value
        for name, value in names.items()
    }


def _put_back(target: dict[str, Any], saved: dict[str, Any]) -> None:
    for name in [name for name in target if name not in saved]:
        del target[name]
    target.update(saved)


def _pair(own: Any, other: Any, replaced: dict[int, Any]) -> None:
    """Map an item and its parts to those of another rank's item of the same structure.

    Numbers and texts are shared objects: an `enumerate` counter may be the very same one.
    """
    if own is None or isinstance(own, bool | int | float | str | bytes):
        return
    replaced[id(own)] = other
    if isinstance(own, dict) and isinstance(other, dict):
        for key in own:
            if key in other:
                _pair(own[key], other[key], replaced)
    elif isinstance(own, list | tuple) and isinstance(other, list | tuple):
        for one, twin in zip(own, other, strict=False):
            _pair(one, twin, replaced)


def _substitute(item: Any, replaced: dict[int, Any]) -> Any:
    """`item` with every part that was drawn replaced; `enumerate` and `zip` wrap what they draw."""
    if id(item) in replaced:
        return replaced[id(item)]
    if isinstance(item, tuple):
        parts = [_substitute(part, replaced) for part in item]
        if all(part is old for part, old in zip(parts, item, strict=True)):
            return item
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    if type(item) is list:
        return [_substitute(part, replaced) for part in item]
    return item
