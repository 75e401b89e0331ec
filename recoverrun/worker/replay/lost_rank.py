"""The state of a lost rank: told by whoever executes its microbatches, followed in between.

A lost rank left its context at a point at which this rank captured its own. From there on its state
is what the execution of its microbatches makes of it; the executor tells all survivors before the
transaction commits. Between a backward and the next iteration nobody runs code as that rank: there
each value is merged (`merged`). What this rank left alone stayed as it was there, what both had in
common moved as it moved here, and what differs and moved is unknown. Random streams of torch move
by as many numbers as this rank drew; all ranks compare in every transaction whether they drew
alike.

A start that was followed across a microbatch which somebody else executes is *assumed*: it has to
be compared with what the executor tells, before the transaction commits.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from recoverrun.worker.context.slot_context import STREAM, Context, Key, Point, host
from recoverrun.worker.context.values import same
from recoverrun.worker.data.iterator_origin import Origin, OriginPairs
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.known_state import (
    ABSENT,
    NOTHING_LACKING,
    UNTOLD,
    KnownState,
    Lacking,
    differing,
    generator_key,
    is_zero_or_empty,
    merged,
)
from recoverrun.worker.rng.registry import place_of
from recoverrun.worker.rng.skip_ahead import draws_between, skip_ahead, skip_like
from recoverrun.worker.rng.streams import Streams

ALONE = (
    "rank {rank} draws random numbers in code for it alone, and nobody has run that in its place: "
    "its stream is unknown"
)
UNEQUAL = (
    "ranks draw unequally many of torch's random numbers between one step and the next: the "
    "stream of another rank is unknown"
)
ELSEWHERE = "rank {rank} has never come to the loop at {loop}: its variables there are unknown"

BEHIND = "rank {rank} left nothing from the end of the last microbatch that it has finished"


@dataclass(slots=True)
class LostRank:
    """One lost rank, from the last context that it left at a point where we were, too."""

    rank: int
    apart: bool  # it or this rank draws in code for one rank alone, which the other does not run
    states: dict[Point, KnownState] = field(default_factory=dict)
    bulk: dict[Key, Any] = field(default_factory=dict)  # large data that it holds otherwise
    pairs: OriginPairs = field(default_factory=OriginPairs)
    resets: dict[Key, Any] = field(default_factory=dict)  # values that all had at the last top
    nothings: dict[Key, Any] = field(default_factory=dict)  # zeros and the like, at any top so far
    loops: set[str] = field(default_factory=set)  # to which it has come
    made: frozenset[int] | None = None  # iterators over loaders that it made itself; None: all
    alone: frozenset[Key] = frozenset()  # what ranks are known not to have in common
    parted: frozenset[Key] = frozenset()  # what differed between what it left and our own
    restless: frozenset[Key] = frozenset()  # of `parted`, what all had in common just before
    unequal: frozenset[str] = frozenset()  # streams of which ranks draw unequally many numbers
    led: Callable[[frozenset[str], Point], bool] = lambda places, since: False
    """True if this rank has done all that the lost one does alone there, right after that point."""
    drawn: tuple[Point, Streams, Streams] | None = None
    """Its streams and ours, after we drew in its place, and our last point before that."""
    drawn_from: tuple[Point, dict[str, Any]] | None = None
    """The generators from which we drew in its place, and our last point before that."""

    def learn(
        self,
        theirs: Context,
        mine: Context,
        *,
        assumed: bool = False,
        lacking: Lacking = NOTHING_LACKING,
    ) -> None:
        """Learn that it stood at `theirs` where we stood at `mine`: as it left, or as its executor
        tells.
        """
        self.states = {p: s for p, s in self.states.items() if p < theirs.point}
        self.states[theirs.point] = KnownState(theirs, *lacking, assumed)
        self.loops.add(theirs.loop)
        self.pairs.learn(theirs.loaders, mine.loaders)
        if theirs.kind == "top":
            self._reset_to(theirs.values, mine.values)

    def end_as_left(self, left: Iterable[Context], own: Mapping[Point, Context]) -> None:
        """Take the end of microbatches that it has `left`: it came back, and was lost before it had
        committed. What is known of these or later ones by their execution counts more.
        """
        for theirs in sorted(left, key=lambda context: context.point):
            mine, newest = own.get(theirs.point), max(self.states, default=None)
            news = newest is None or theirs.point > newest
            news = news or (theirs.point == newest and self.states[newest].assumed)
            if news and theirs.kind == "after" and mine is not None and mine.loop == theirs.loop:
                self.learn(theirs, mine)

    def begin(self, point: Point) -> None:
        """An iteration begins here at `point`: what had that number or a later one is over."""
        self.states = {p: s for p, s in self.states.items() if p < point}

    def at(self, point: Point, own: Sequence[Context]) -> KnownState:
        """Its state at our own `point`; `own` are our points, oldest first.

        Raises NotReplayable if it cannot be followed to that point.
        """
        state = self.states.get(point) or self._reached(point, own)
        if state.context.loop not in self.loops:
            raise NotReplayable(ELSEWHERE.format(rank=self.rank, loop=state.context.loop))
        return state

    def _reached(self, point: Point, own: Sequence[Context]) -> KnownState:
        """The rank's state at a point that it was not followed to yet. Raises NotReplayable."""
        before = [one for one in own if one.point in self.states and one.point < point]
        if not before:
            raise NotReplayable(
                f"rank {self.rank} left no context at a point that this rank has passed"
            )
        here, state = before[-1], self.states[before[-1].point]
        for mine in own:
            if here.point < mine.point <= point:
                if mine.kind == "after" and mine.step < point[0]:
                    raise NotReplayable(BEHIND.format(rank=self.rank))
                state = self.states.get(mine.point) or self._followed(state, here, mine)
                self.states[mine.point] = state
                here = mine
        if here.point != point:
            raise NotReplayable(f"this rank kept nothing of its microbatch {point[:2]}")
        return state

    def forget(self, before: Point, begun: Collection[Point]) -> None:
        """Drop what was known at points `before` this one, but for the newest one, and for those at
        which iterations that are under way have `begun`.
        """
        last = max(self.states, default=None)
        kept = {p: s for p, s in self.states.items() if p >= before or p == last or p in begun}
        self.states = kept

    def _followed(self, state: KnownState, before: Context, after: Context) -> KnownState:
        theirs = state.context
        within = after.kind == "after"  # a microbatch lies between
        streams, why = self._streams(state, before, after, within)
        values, apart = merged(
            before.values,
            after.values,
            theirs.values,
            begins=self._begins,
            alone=self.alone,
            restless=self.restless,
        )
        rest = {} if within else _rest(theirs, before, after)
        values |= rest
        apart -= rest.keys()
        begun = {
            k
            for k in state.unknown
            if k in values and k not in apart and self._begins(k, values[k])
        }
        led = theirs if within else self._led(theirs, before.point)
        generators, moved = self._generators(before, after, led)
        unknown = (
            (state.unknown - begun - rest.keys())
            | apart
            | moved
            | _hosts_apart(before, after, theirs)
        )
        if not within:
            unknown |= self._moved_alone(before, after)
        loaders = {
            number: theirs.loaders.get(number) or self.created(own, state, before)
            for number, own in after.loaders.items()
        }
        context = replace(
            after,
            streams=streams,
            generators=generators,
            loaders=loaders,
            alone_at=theirs.alone_at,
            made={},
            behind={},
        ).with_values({**_elsewhere(theirs, after), **values})
        if not within and after.kind == "top":
            known = {k: v for k, v in values.items() if k not in unknown}
            self._reset_to(known, after.values)
        return KnownState(context, unknown, why, state.assumed or within)

    def _reset_to(self, theirs: Mapping[Key, Any], mine: Mapping[Key, Any]) -> None:
        """Note what all have at a top. A counter may be zero again only several tops later."""
        self.resets = {k: v for k, v in theirs.items() if same(v, mine.get(k, ABSENT))}
        self.nothings |= {k: v for k, v in self.resets.items() if is_zero_or_empty(v)}

    def _begins(self, key: Key, now: Any) -> bool:
        """True if `now` is what all had at a top, and so what all have again."""
        known = (self.resets.get(key, ABSENT), self.nothings.get(key, ABSENT))
        return any(same(one, now) for one in known)

    def _streams(
        self,
        state: KnownState,
        before: Context,
        after: Context,
        within: bool,
    ) -> tuple[Streams, str]:
        """The rank's streams at our point `after`, and why torch's are not known there, or ""."""
        theirs, mine, why = state.context.streams, before.streams, state.torch_unknown
        drawn = None if within else self._drawn_since(before.point)
        if drawn is not None:
            theirs, mine = drawn
        elif self.apart and any(theirs.private) and not within and not why:
            if not self.led(state.context.alone_at, before.point):
                why = ALONE.format(rank=self.rank)
        moved = skip_ahead(theirs, mine, after.streams, hosts=False, shared=self.apart)
        if not within and drawn is None and self.unequal & _torch_moved(mine, after.streams):
            why = why or UNEQUAL
        if moved is None:
            moved, why = after.streams, why or UNTOLD
        kept, own = theirs.hosts, after.streams.hosts
        hosts = {n: own[n] if kept[n] == began else kept[n] for n, began in mine.hosts.items()}
        return moved.hosted(hosts), why

    def _generators(
        self, before: Context, after: Context, theirs: Context
    ) -> tuple[dict[str, Any], set[Key]]:
        """Generators of torch move by as many numbers as ours; others as all values do."""
        values, apart = merged(before.generators, after.generators, theirs.generators)
        for key in after.generators.keys() - before.generators.keys() - theirs.generators.keys():
            if not _made_alike(key, before.generators, theirs.generators):
                apart.add(key)
        for key in list(apart & theirs.generators.keys()):
            their, now = theirs.generators[key], after.generators[key]
            was = before.generators.get(key)  # None: it was made here only now
            if isinstance(their, torch.Tensor) and isinstance(was, torch.Tensor):
                assert isinstance(now, torch.Tensor), "of the same generator"
                moved = skip_like(their, was, now)
                if moved is not None:
                    values[key] = moved
                    apart.discard(key)
        return values, {generator_key(key) for key in apart}

    def _moved_alone(self, before: Context, after: Context) -> set[Key]:
        """Streams and generators that moved here, and otherwise on other ranks."""
        states, hosts = before.generators, before.streams.hosts
        found: set[Key] = {
            generator_key(key)
            for key, state in after.generators.items()
            if (key in self.unequal or (STREAM, key) in self.alone)
            and not same(state, states.get(key))
        }
        moved = {host(name) for name, now in after.streams.hosts.items() if now != hosts[name]}
        return found | (moved & self.alone)

    def created(self, own: Origin, state: KnownState, mine: Context) -> Origin:
        """The rank's state as it would have made an iterator that we made at `own`."""
        streams = None
        if own.streams is not None and not state.torch_unknown:
            streams = skip_ahead(
                state.context.streams, mine.streams, own.streams, hosts=False, shared=self.apart
            )
        return self.pairs.derive(own, streams)

    def origin(self, number: int, own: Origin | None, points: Sequence[Context]) -> Origin | None:
        """The origin of its iterator `number`, or the one it would have where we made our `own`."""
        known = [one for one in points if one.point in self.states]
        if not known:
            return None
        state = self.states[known[-1].point]
        theirs = state.context.loaders.get(number)
        return theirs if theirs is not None or own is None else self.created(own, state, known[-1])

    def known_at(self, own: Streams, mine: Context) -> Streams | None:
        """The rank's streams where ours are `own`, since our point `mine`; None if they are not
        known.
        """
        state = self.states.get(mine.point)
        if state is None or state.torch_unknown:
            return None
        drawn = self._drawn_since(mine.point)
        theirs, here = drawn or (state.context.streams, mine.streams)
        if here.hosts != own.hosts:
            return None
        moved = skip_ahead(theirs, here, own, hosts=False, shared=self.apart)
        return None if moved is None else moved.hosted(theirs.hosts)

    def stood_in(self, mine: Context, own: Streams, began: Streams, ended: Streams) -> None:
        """Note that in its place we drew what it alone draws, from `began` to `ended`; ours are
        `own`.
        """
        count = draws_between(began.torch_cpu, ended.torch_cpu) or 1  # also what is not counted
        cpu, *cuda = began.private
        self.drawn = mine.point, ended.with_private([cpu + count, *cuda]), own

    def generators_at(
        self, own: Mapping[str, Any], mine: Context
    ) -> tuple[dict[str, Any], frozenset[str]]:
        """Its generators where ours are `own`, since our point `mine`; and those of ours whose
        place on it is not known.
        """
        state = self.states.get(mine.point)
        if state is None:
            return {}, frozenset(own)
        theirs = self._led(state.context, mine.point)
        values, apart = self._generators(mine, replace(mine, generators=dict(own)), theirs)
        # What we hold only since then was made in its place.
        made = own.keys() & theirs.generators.keys() - mine.generators.keys()
        values |= {key: theirs.generators[key] for key in made}
        unknown = {key for key in own if generator_key(key) in state.unknown | apart}
        return values, frozenset(unknown - made)

    def drew_from(self, mine: Context, moved: Mapping[str, Any]) -> None:
        """Note where its generators stand from which we drew in its place."""
        last, before = self.drawn_from or (None, {})
        self.drawn_from = mine.point, {**(before if last == mine.point else {}), **moved}

    def _led(self, theirs: Context, here: Point) -> Context:
        """The rank's context at our point `here`, after all that we drew in its place."""
        if self.drawn_from is None or self.drawn_from[0] != here:
            return theirs
        return replace(theirs, generators={**theirs.generators, **self.drawn_from[1]})

    def _drawn_since(self, here: Point) -> tuple[Streams, Streams] | None:
        return None if self.drawn is None or self.drawn[0] != here else self.drawn[1:]


def _made_alike(key: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """True if this generator, which was made here only now, is taken for common to both: those
    made before it at its place in the code were.
    """
    place = place_of(key)
    before = [one for one in {**mine, **theirs} if place_of(one) == place]
    return bool(before) and all(
        same(mine.get(one, ABSENT), theirs.get(one, ABSENT)) for one in before
    )


def _torch_moved(before: Streams, after: Streams) -> set[str]:
    """The streams of torch that have moved, by the names that votes give them."""
    cuda = enumerate(zip(before.torch_cuda, after.torch_cuda, strict=False))
    moved = {f"cuda{number}" for number, (was, now) in cuda if was != now}
    return moved | ({"torch"} if before.torch_cpu != after.torch_cpu else set())


def _hosts_apart(before: Context, after: Context, theirs: Context) -> set[Key]:
    """Streams of Python and numpy that moved here while those of the other rank stood elsewhere."""
    return {
        host(name)
        for name, own in before.streams.hosts.items()
        if own != after.streams.hosts[name] and theirs.streams.hosts[name] != own
    }


def _rest(theirs: Context, before: Context, after: Context) -> dict[Key, Any]:
    """The values that the rest of its iteration has made on the other rank, as far as that is what
    it made here.
    """
    mine, now = before.behind, after.values
    return {
        key: value
        for key, value in theirs.behind.items()
        if key in mine and key in now and same(mine[key], now[key])
    }


def _elsewhere(theirs: Context, after: Context) -> dict[Key, Any]:
    """Values that our point `after` does not show: another loop may."""
    shown = after.values
    return {key: value for key, value in theirs.values.items() if key not in shown}


def lost_rank(
    rank: int,
    left: Iterable[Context],
    own: Mapping[Point, Context],
    *,
    apart: bool,
) -> LostRank | None:
    """Lost `rank`, from the contexts that it `left`; None if we were at none of these points."""
    met = [one for one in left if one.point in own and own[one.point].loop == one.loop]
    if not met:
        return None
    met.sort(key=lambda one: one.point)
    theirs, mine = any(met[-1].streams.private), any(own[met[-1].point].streams.private)
    # Numbers drawn alone tell more than `apart`, which only guesses.
    lost = LostRank(rank, apart=theirs != mine or (apart and not mine))
    lost.made = frozenset(number for one in met for number in one.loaders)
    for context in met:
        lost.learn(context, own[context.point])
    lost.parted = frozenset(differing(met[-1], own[met[-1].point]))
    return lost
