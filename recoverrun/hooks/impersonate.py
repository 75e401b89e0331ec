"""Executing a region of the script again, as another rank (docs/injection.md, "Re-execution").

A microbatch is a pure function of (parameters, step, slot, index). To compute one of a lost slot,
this rank runs the script's own code for its own microbatch of the same index, with everything that
is the slot's put in its place: random streams, rank-dependent variables and attributes, data. All
that was touched is put back afterwards, and the script never knows.

What a lost rank is, and how it is kept true over time, is the business of `heritage`. Where that
cannot be told, lost microbatches are made up with fresh data (`makeup`), never with wrong ones.
"""

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ft_collectives.faults import InvariantBroken, Superseded
from recoverrun.hooks import modules, rng, scene, slices
from recoverrun.hooks.bearing import Bearing
from recoverrun.hooks.context import (
    Context,
    Key,
    attributes_of,
    capture,
    is_framework,
    objects_of,
    put,
    resolve,
    values_of,
)
from recoverrun.hooks.data import NotReplayable
from recoverrun.hooks.heritage import UNTOLD, Heritage, heir_of, hosts_of, named
from recoverrun.hooks.items import served, substituted
from recoverrun.hooks.iterators import Bound, copy_of
from recoverrun.hooks.looping import find_frame
from recoverrun.hooks.namespaces import around_of, copied, held, hold, put_back, seen_by, states_of
from recoverrun.hooks.origins import Origin
from recoverrun.hooks.poison import poisoned
from recoverrun.hooks.runtime import Microbatch, ScriptRuntime, Shape, Turn, Unwind
from recoverrun.hooks.script import ITEM_NAME, RUNTIME_NAME
from recoverrun.hooks.shares import Shares

TALKS = (
    "what the ranks tell each other before the backward (a count of tokens, say) changes the "
    "gradient, and a lost rank's word cannot be told"
)

RAISED = "{}: executed as rank {}, the script's code raised {!r}"

Counted = torch.Tensor | None  # the tokens of a step so far, where a script tells them

KEPT_CAPTURES = 8
"""Own captures kept to compare a lost rank's with: it may have stopped a step or two earlier."""


@dataclass(slots=True)
class Costume:
    """What a re-execution changed and has to put back."""

    streams: rng.Streams
    generators: list[tuple[Any, Any]] = field(default_factory=list)
    globals: dict[str, Any] | None = None
    changed_globals: dict[str, Any] = field(default_factory=dict)
    attributes: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)


class Impersonator:
    """Keeps own captures and the heritage of lost ranks, and executes regions as them."""

    def __init__(self, runtime: ScriptRuntime) -> None:
        self.runtime = runtime
        self.bearing = Bearing(runtime)
        self.shares = Shares()
        self.captures: dict[tuple[int, int, int], Context] = {}  # by point, oldest first
        self.heritage: dict[int, Heritage] = {}
        self.remains: dict[int, tuple[Context, ...]] = {}
        self.interim: Heritage | None = None  # rank 0 since a commit, until we speak for it
        self.standing: Heritage | None = None  # and as a microbatch's lone code has left it
        self.excused: frozenset[Key] | None = None
        self.rehearsing = self.talked = self.replaying = False  # a replay only moves a chain along
        self._fed = False  # a microbatch's item is what some iterator gave
        self.backwards_seen, self._accumulates = 0, False  # by half of a microbatch, perhaps
        self.looking_back = False  # what is served was drawn before the region
        self.fresh = False  # executing as ourselves, on fresh data
        self.buffers: Callable[[], list[torch.Tensor]] = list  # of the model
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.counted: Callable[[Mapping[str, Any]], Counted] = lambda names: None
        self.made_up: Callable[[Counted, Counted], None] = lambda before, after: None

    # --------------------------------------------------------------------------- own captures

    def capture_top(self, step: int, attempt: int, turn: Turn) -> Context:
        """Our context as the first microbatch of `step` begins."""
        assert turn.streams is not None, "an iteration has begun"
        self.bearing.turn = turn
        module = turn.globals if turn.before is None else turn.before
        context = capture(
            step=step,
            attempt=attempt,
            kind="top",
            loop=turn.loop.id,
            streams=turn.streams,
            names=seen_by(turn.loop, module, turn.names),
            carried=turn.loop.carried,
            loaders=self._loaders(),
            attributes=turn.attributes,
        )
        for name in context.names.keys() & turn.generators.keys():
            context.names[name] = turn.generators[name]  # they may have moved since the top
        return self._keep(context)

    def capture_ahead(self, step: int, shape: Shape) -> Context:
        """Our context for `step`, from the commit point before it."""
        return self._keep(self.present(step, shape))

    def present(self, step: int, shape: Shape) -> Context:
        """What a capture ahead of `step` is if it is made now."""
        turn = self.runtime.microbatches[-1].turn
        frame = find_frame(turn.frame_id, sys._getframe(1))
        local = frame.f_locals if frame is not None and not shape.region.module_level else {}
        names = seen_by(shape.region, turn.globals, local)
        around = around_of(shape.region, turn.globals, local)
        if sys.version_info < (3, 13):
            local.clear()  # the frame would keep every local alive until the next call
        return capture(
            step=step,
            attempt=0,
            kind="ahead",
            loop=shape.region.id,
            streams=rng.read(),
            names=names,
            carried=shape.region.carried,
            loaders=self._loaders(),
            attributes=attributes_of(around, self.runtime.own_modules),
        )

    def _loaders(self) -> dict[int, Origin]:
        return {
            source.number: source.origin
            for source in self.runtime.sources
            if not getattr(source, "gone", False) and hasattr(source, "origin")
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
        heir = self.met(rank, step)
        if heir is None:
            return False
        if self.excused is None:  # the rehearsal is about to show whether they matter
            self.excused = heir.marks()
        heir.excused = self.excused
        heir.settle(self.captures.values(), step, self.bearing.matters, self.bearing.is_written)
        if self.interim is not None and self.interim.point == heir.theirs.point:
            heir.go_on_from(self.interim)
        self.heritage[rank] = heir
        return True

    def met(self, rank: int, step: int) -> Heritage | None:
        """Lost `rank` where we were last at the same point, up to the top of `step`."""
        left = [one for one in self.remains.get(rank, ()) if one.step <= step]
        heir = heir_of(rank, left, self.captures, apart=self.runtime.apart_from(rank))
        if heir is not None:
            heir.led = self.runtime.has_done(rank, heir.theirs.alone_at)
        return heir

    def forget(self, rank: int) -> None:
        """End a rehearsal: `rank` is alive and speaks for itself."""
        self.heritage.pop(rank, None)
        self.remains.pop(rank, None)
        for source in self.runtime.sources:
            source.forget(rank)

    def follow(self, top: Context) -> None:
        """A new step begins at our capture `top`: move every lost rank's context along.

        Raises NotReplayable with the reason why one can no longer be spoken for exactly.
        """
        ahead = self.captures.get((top.step, 0, 0))
        for rank in sorted(self.heritage):
            heir = self.heritage[rank]
            heir.led = self.runtime.has_done(rank, heir.theirs.alone_at)
            if rank == 0 and self.standing is not None:
                heir.go_on_from(self.standing)
                self.standing = None
            heir.follow(ahead, top)

    def complete(self, shape: Shape) -> None:
        """The step ends: bring the chains of all lost ranks to its end. Raises NotReplayable."""
        self.interim = None
        for rank in sorted(self.heritage):
            heir = self.heritage[rank]
            while heir.moving and heir.index < len(self.runtime.microbatches):
                self._run_as(heir, heir.index, shape, replay=True)
            heir.end_step()

    def created_at(self, number: int, rank: int) -> Origin | None:
        """Where `rank` stood, or would have, when it created its iterator `number`.

        Its stream at a microbatch is told from ours there, which has paid for what creating an
        iterator draws: so the clone of one that is made within a step must not pay again.
        """
        heir = self.heritage.get(rank)
        if heir is None:
            return None
        known, own = heir.theirs.loaders.get(number), self._loaders().get(number)
        return known if known is not None or own is None else heir.created(own)

    # --------------------------------------------------------------------------- execution

    def execute(self, rank: int, index: int, shape: Shape) -> bool:
        """Compute microbatch `index` of the present step as lost `rank`.

        Returns whether the code reached its backward. Raises NotReplayable, or what the script's
        own code raises.
        """
        heir = self.heritage[rank]
        heir.go_back(index)
        while heir.moving and heir.index < index:
            self._run_as(heir, heir.index, shape, replay=True)
        return self._run_as(heir, index, shape, replay=False)

    def _run_as(self, heir: Heritage, index: int, shape: Shape, *, replay: bool) -> bool:
        """Run the region as a lost rank; a replay stops at the backward, without gradients."""
        own = self.runtime.microbatches[index]
        self._require_copies(own)
        later = self.runtime.microbatches[index + 1 :]
        following = later[0].streams if later else rng.read()
        heir.require_hosts(own, following, later)
        streams = heir.streams_at(own.streams)
        untold = streams if heir.needs_seed(own, following) else None
        costume = Costume(streams=rng.read())
        self.runtime.acting_rank, self.runtime.untold, self.replaying = heir.rank, untold, replay
        try:
            bulk = {**own.bulk, **heir.bulk} if heir.moving else own.bulk
            names = self._dress(own, heir.differing(index), shape, costume)
            hold(names, bulk)
            self._share(heir.rank, own, names, costume)
            self._lend(names, own, costume)
            for source in self.runtime.sources:  # one that the body made had given nothing yet
                source.seek(heir.rank, 0)
            for source, count in own.positions:
                source.seek(heir.rank, count)
            rng.restore(streams)
            item = self._item_of(own, heir.rank)
            if own.met is not None:  # what making an iterator draws is not drawn again
                rng.restore(heir.streams_at(own.met).hosted(rng.read_hosts()))
            apart = heir.bulk.values()
            with self._unchanged(own, names, apart), scene.training(not replay):
                reached = self._run(names, shape, item)
                heir.advance(names, self._moved_values(heir, names))
                heir.bulk = held(names, bulk)
            return reached
        finally:
            self.runtime.acting_rank, self.runtime.untold, self.replaying = None, None, False
            self._undress(own, costume)

    def _moved_values(self, heir: Heritage, names: Mapping[str, Any]) -> dict[Key, Any]:
        """What the lost rank's moving values have become."""
        if not heir.moving:
            return {}
        now = hosts_of(rng.read())
        variables = [key for key in heir.moving if isinstance(key, str)]
        found: dict[Key, Any] = {}
        found.update(
            values_of(
                {name: names[name] for name in variables if name in names}, frozenset(variables)
            )
        )
        for key in heir.moving:
            if key in now:
                found[key] = now[key]
            elif not isinstance(key, str) and (owner := resolve(names, key)) is not None:
                kept = values_of({key[-1]: vars(owner)[key[-1]]})
                if kept:
                    found[key] = kept[key[-1]]
        return found

    def unheard(self, alone: torch.Tensor) -> torch.Tensor:
        """A collective of re-executed code, in which this rank is `alone`.

        In the rehearsal its result is poisoned: if the gradient is right all the same, nothing
        depends on what other ranks would have said, as with a loss that is summed for the log.
        """
        if self.fresh or slices.is_over(self):
            return alone
        if self.rehearsing:
            self.talked = True
            return poisoned(alone)
        if not self.talked:
            self.runtime.spoil(TALKS)
        return alone

    def _require_copies(self, own: Microbatch) -> None:
        for key, copy in own.iterators.items():
            if isinstance(copy, Bound) and self.bearing.matters(key, None):
                raise NotReplayable(f"{named(key)} is an iterator that no other rank can read here")

    def _lend(self, names: dict[str, Any], own: Microbatch, costume: Costume) -> None:
        """Give re-executed code copies of the script's plain iterators."""
        module = own.turn.globals
        lent = {key: copy_of(kept) for key, kept in own.iterators.items()}
        hold(names, {key: one for key, one in lent.items() if not isinstance(one, Bound)})
        for key in lent:
            if isinstance(key, str) and key in module and names is not module:
                costume.changed_globals.setdefault(key, module[key])
                module[key] = names[key]  # functions that the region calls read it there

    def _share(self, rank: int, own: Microbatch, names: dict[str, Any], costume: Costume) -> None:
        """Put the rank's shares of the data in the place of ours."""
        module = own.turn.globals
        visible = {**module, **own.names}
        shares = self.shares.of(rank, visible)
        hold(visible, {key: one for key, one in shares.items() if not isinstance(key, str)})
        for name, value in shares.items():
            if isinstance(name, str):
                names[name] = value
                if name not in own.names and names is not module:
                    costume.changed_globals.setdefault(name, module[name])
                    module[name] = value  # functions that the region calls read it there

    def execute_fresh(self, index: int, shape: Shape) -> bool:
        """Compute one more microbatch as ourselves, on our own next data (equal-count)."""
        own = self.runtime.microbatches[index]
        saved = dict(own.turn.globals) if shape.region.module_level else None
        names = self._namespace(own, shape)
        visible = {**own.turn.globals, **own.names}
        kept = [
            (vars(owner), dict(vars(owner)))  # their counts are of the script's own microbatches
            for _, owner in objects_of(visible, self.runtime.own_modules)
            if is_framework(owner)
        ]
        costume = Costume(streams=rng.read())
        originals = held(names, own.iterators)
        self._lend(names, own, costume)
        self.fresh, self.runtime.acting_rank = True, self.runtime.own_rank
        try:
            with self._unchanged(own, names), scene.schedules_rest(), scene.training():
                return self._run(names, shape, self._item_of(own, self.runtime.own_rank))
        finally:
            self.fresh, self.runtime.acting_rank = False, None
            hold(names, originals)
            own.turn.globals.update(costume.changed_globals)
            for attributes, values in kept:
                put_back(attributes, values)
            if saved is not None:
                put_back(own.turn.globals, saved)

    @contextmanager
    def _unchanged(
        self, own: Microbatch, names: dict[str, Any], apart: Iterable[Any] = ()
    ) -> Iterator[None]:
        """The script never knows: what is executed counts for no microbatch of its own.

        On fresh data of our own, where the script stands in them moves on.
        """
        mine = self.runtime.own_modules
        owners = [vars(owner) for _, owner in objects_of({**own.turn.globals, **own.names}, mine)]
        found = modules.among([own.turn.globals, own.names, *owners])
        spaces = [vars(sys.modules[name]) for name in sorted(mine) if name in sys.modules]
        spaces = [] if self.fresh else [*spaces, own.names, names]
        with modules.untouched(found, self.buffers()):
            with scene.unchanged(spaces, found, self.optimizers, mine, apart):
                yield

    def _namespace(self, own: Microbatch, shape: Shape) -> dict[str, Any]:
        """Where the region runs. Code at module level needs the true globals: functions that it
        calls read them.
        """
        if shape.region.module_level:
            own.turn.globals.update(copied(own.names))
            return own.turn.globals
        return {**own.turn.globals, **copied(own.names)}

    def _dress(
        self, own: Microbatch, differing: Mapping[Key, Any], shape: Shape, costume: Costume
    ) -> dict[str, Any]:
        module = own.turn.globals
        if shape.region.module_level:
            costume.globals = dict(module)
        names = self._namespace(own, shape)
        visible = {**module, **own.names}
        owners = [owner for _, owner in objects_of(visible, self.runtime.own_modules)]
        costume.attributes = [(owner, dict(vars(owner))) for owner in owners]
        costume.generators = states_of([visible, *(vars(owner) for owner in owners)])
        for name, state in own.generators.items():
            put(visible, name, state)
        attributes = {k: v for k, v in own.attributes.items() if k not in differing}
        attributes.update({k: v for k, v in differing.items() if not isinstance(k, str)})
        for path, value in attributes.items():
            owner = resolve(visible, path)
            if owner is not None:
                put(vars(owner), path[-1], value)
        variables = {k: v for k, v in differing.items() if isinstance(k, str)}
        for name in sorted(variables.keys() - shape.region.targets):
            put(names, name, variables[name])
            if name not in own.names and names is not module:
                costume.changed_globals[name] = module[name]
                module[name] = names[name]  # functions that the region calls read it there
        return names

    def _undress(self, own: Microbatch, costume: Costume) -> None:
        module = own.turn.globals
        if costume.globals is not None:
            put_back(module, costume.globals)
        module.update(costume.changed_globals)
        for owner, attributes in costume.attributes:
            put_back(vars(owner), attributes)
        for restore, state in costume.generators:
            restore(state)
        rng.restore(costume.streams)

    def _item_of(self, own: Microbatch, rank: int) -> Any:
        """The loop's item with what was drawn for it replaced by what `rank` would have drawn."""
        drawn = served(own.item, own.draws, rank)
        before = rng.read()
        self.looking_back = True
        try:
            drawn += served(own.item, own.ahead, rank)
        finally:
            self.looking_back = False
        if rng.read() != before and not self.fresh:
            raise NotReplayable("data that are fetched ahead draw random numbers as they are read")
        if self.rehearsing:
            self._fed = bool(drawn)
        elif self._fed and not drawn and not self.fresh:
            raise NotReplayable(
                f"the data of microbatch {own.index} were drawn too long before it began"
            )
        return substituted(own.item, drawn)

    def _run(self, names: dict[str, Any], shape: Shape, item: Any) -> bool:
        region = shape.region
        assert region.body_code is not None, f"{region.id} was refused: {region.refusal}"
        names[RUNTIME_NAME] = self.runtime
        self.backwards_seen, self._accumulates = 0, False
        self.runtime.spoiled = ""
        before = self.counted(names)
        try:
            if region.item_code is not None:
                names[ITEM_NAME] = item
                exec(region.item_code, names)
            exec(region.body_code, names)
        except Unwind:
            pass
        except (NotReplayable, Superseded, InvariantBroken):
            raise
        except Exception as error:  # protects a healthy run from what its code says to others' data
            why = self.runtime.spoiled or (TALKS if self.rehearsing and self.talked else "")
            if why:
                raise NotReplayable(why) from error
            if self.fresh or (self._accumulates and not self.rehearsing) or "gloo" in str(error):
                raise
            problem = RAISED.format(region.id, self.runtime.acting_rank, error)
            raise NotReplayable(problem) from error
        if self.runtime.spoiled:
            raise NotReplayable(self.runtime.spoiled)
        if (reached := self.backwards_seen >= shape.backwards) and not self.rehearsing:
            self.made_up(before, self.counted(names))
        return reached

    def backward_begins(self) -> None:
        """A replay has seen what it came for; nothing that is spoiled may be accumulated."""
        if self.runtime.untold is not None:
            self.runtime.spoil(UNTOLD)
        if self.replaying or (self.runtime.spoiled and self.runtime.acting_rank is not None):
            raise Unwind("backward")
        self._accumulates = True

    def backward_done(self, shape: Shape) -> None:
        """A backward inside a re-execution: after the last one there is nothing more to run."""
        self.backwards_seen += 1
        if self.backwards_seen >= shape.backwards and not shape.slices:
            raise Unwind("backward")
