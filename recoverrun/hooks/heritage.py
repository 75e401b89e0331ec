"""What is known of a lost rank, and how it is kept true from step to step.

All slots run the same code on data of equal shapes. So a lost rank's random streams move as far as
our own over the same microbatches (`rng.jump`), and what differs between the ranks but never
changes (`rank`, say) stays as it was. What differs *and* moves, such as the position of a
hand-written loader, moves by the script's own rules, which only its code knows: those values are
carried along a chain, from one execution of the region as that rank to the next. A survivor that
does not compute a microbatch itself then runs its forward pass to keep the chain whole
(`impersonate`).

Own captures are made at the same points as those that lost ranks left, so that the two compare.

Between steps ranks may part: one of them evaluates the model and draws numbers for it. Who has
drawn as often as the lost rank so far is taken at its word from there on; who has drawn more knows
that rank's stream until it draws between steps again; who has drawn less does not know it
(`Kin`). Survivors tell each other in every step (`kinship`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recoverrun.hooks import ownrng, rng
from recoverrun.hooks.bulk import is_mark
from recoverrun.hooks.context import Context, Key, differences, same
from recoverrun.hooks.data import NotReplayable
from recoverrun.hooks.kin import Kin, draws, kin_of
from recoverrun.hooks.origins import Origin, Pairs
from recoverrun.hooks.runtime import Microbatch

NUMBERS_MOVE = (
    "random numbers of Python or numpy are drawn after a backward or now and then: the stream of "
    "another rank cannot be told from this one's"
)
UNTOLD = (
    "torch's random numbers are seeded anew in a step (or single normal numbers are drawn, or tens "
    "of millions), and a microbatch draws some before it seeds them itself: the stream of another "
    "rank cannot be told"
)

HOSTS: dict[str, Key] = {
    "python": ("the stream of Python's random",),
    "numpy": ("the stream of numpy.random",),
}
"""Under these keys the streams of `rng.HOSTS` move along chains; no attribute is called so."""

STREAM_PARTED = (
    "rank {rank} and this one draw random numbers differently (does one of them evaluate, or have "
    "longer batches under dropout?): its stream cannot be told from this one's"
)


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
    past: list[tuple[dict[Key, Any], dict[Key, Any]]] = field(default_factory=list)
    """`moving` and `bulk` before each microbatch of `step` that the chain has passed."""
    excused: frozenset[Key] = frozenset()  # marks that differ and were shown not to matter
    bulk: dict[Key, Any] = field(default_factory=dict)  # large data that it holds, once followed
    sure: bool = True  # of its random stream
    apart: bool = False  # what either of us draws in code meant for it alone, the other does not
    led: bool = False  # since the last commit point we have drawn what it alone draws
    matters: Callable[[Key, Any], bool] = lambda key, value: True
    counted: bool = True  # our own draws, since both were last known
    pairs: Pairs = field(default_factory=Pairs)
    _kin: Kin | None = None
    _pace: bool | None = None

    def __post_init__(self) -> None:
        """Whether numbers were drawn `alone` tells more than `apart`, which only guesses."""
        theirs, mine = any(self.theirs.streams.alone), any(self.mine.streams.alone)
        self.apart = theirs != mine or (self.apart and not mine)

    def settle(
        self,
        captures: Iterable[Context],
        step: int,
        matters: Callable[[Key, Any], bool],
        written: Callable[[Key], bool],
    ) -> None:
        """Tell what is the rank's from what is the step's, by our own `captures` (oldest first).

        We are in `step`; `matters` tells what can change a gradient, and `written` what a
        microbatch changes. Raises NotReplayable if a value that moves cannot be told for its top.
        """
        own = list(captures)
        for theirs, mine in filter(None, (self.earlier, (self.theirs, self.mine))):
            self.pairs.learn(theirs.loaders, mine.loaders)
        tops = [one for one in own if one.kind == "top" and one.step <= step]
        self.part(own, matters, written)
        if self.moving and not (tops and self._reaches(tops[-1])):
            raise NotReplayable(parted(self._apart(), "outside of the loop body"))

    def part(
        self,
        own: list[Context],
        matters: Callable[[Key, Any], bool],
        written: Callable[[Key], bool],
    ) -> None:
        """What differs is `fixed` or `moving`, by whether it has changed in our `own` captures."""
        self.matters = matters
        hosts = rng.read_hosts()
        self.step, self.index = self.theirs.step, 0
        since = [one for one in own if one.point >= self.mine.point]
        for ahead, top in zip(since, since[1:], strict=False):
            if ahead.kind == "ahead" and top.kind == "top":
                self._cross(ahead, top)
        differ = differences(self.theirs, self.mine)
        both: list[tuple[Key, Any]] = [*differ.names.items(), *differ.attributes.items()]
        for key, value in both:
            if is_mark(_last(key)):
                if matters(key, value):
                    self._require_same_bulk(key)
                continue
            if isinstance(key, str) and self._begins_anew(key, own):
                continue
            if not _moves(key, own):
                self.fixed[key] = value
            elif matters(key, value):
                self.moving[key] = value
        for name, key in HOSTS.items():
            if any(one.streams.hosts[name] != hosts[name] for one in own):
                self.moving[key] = self.theirs.streams.hosts[name]
        if self.moving:  # what is the same now need not go on so: a loader's file, its position
            alike: list[Key] = [*self.theirs.names, *self.theirs.attributes]
            for key in alike:
                if key not in self.moving and key not in self.fixed and written(key):
                    self.moving[key] = _value(self.theirs, key)

    def unforeseen(
        self, top: Context, truth: Context, matters: Callable[[Key, Any], bool]
    ) -> frozenset[Key]:
        """What we would not have told at our capture `top`, where the rank really stood at `truth`.

        Of variables and attributes only: streams are told apart from them.
        """
        found: set[Key] = set()
        differ = differences(truth, top)
        both: list[Key] = [*differ.names, *differ.attributes]
        for key in {*self.fixed, *self.moving, *both} - set(HOSTS.values()):
            if is_mark(_last(key)) or not (_has(truth, key) and _has(top, key)):
                continue
            if not self._foresees(key, top, _value(truth, key)) and matters(key, _value(top, key)):
                found.add(key)
        return frozenset(found)

    def _foresees(self, key: Key, top: Context, truth: Any) -> bool:
        after = _value(top, key)
        if key in self.fixed:
            return same(self.fixed[key], truth)
        if key not in self.moving:
            return same(after, truth)  # taken to be the step's, not the rank's
        value, before = self.moving[key], _value(self.mine, key)
        if same(before, after) or same(value, after):
            return same(value, truth)
        return same(value, before) and same(after, truth)

    def marks(self) -> frozenset[Key]:
        """What large data of the rank differ from ours."""
        differ = differences(self.theirs, self.mine)
        keys: list[Key] = [*differ.names, *differ.attributes]
        return frozenset(key for key in keys if is_mark(_last(key)))

    def _require_same_bulk(self, key: Key) -> None:
        if key not in self.excused:
            name = named(key).removesuffix("#")
            raise NotReplayable(f"rank {self.rank} holds other data in {name} than this rank")

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
        return ahead and not self._pass_gap(self.mine, top)

    def _pass_gap(self, ahead: Context, top: Context) -> list[Key]:
        """From one step to the next: what moved there must be the same on both sides before it.

        Then it is taken to have moved alike. Returns what was not the same.
        """
        apart: list[Key] = []
        for key, value in list(self.moving.items()):
            before, after = _value(ahead, key), _value(top, key)
            if same(before, after) or same(value, after):
                continue
            if same(value, before):
                self.moving[key] = after
            else:
                apart.append(key)
        return apart

    def streams_at(self, own: rng.Streams) -> rng.Streams:
        """The rank's streams at the point where ours are `own`.

        If ours were seeded anew since, torch's are not told: ours stand in until code seeds them.
        """
        moved = self._jumped(own)
        if moved is None:
            self.sure = self.counted = False
            moved = own.hosted(self.theirs.streams.hosts)
        return moved.hosted(self._hosts())

    def _jumped(self, own: rng.Streams) -> rng.Streams | None:
        here = self.mine.streams
        return rng.jump(self.theirs.streams, here, own, hosts=False, shared=self.apart)

    def known_at(self, own: rng.Streams) -> rng.Streams | None:
        """The rank's streams where ours are `own`, if we are sure of them."""
        moved = self._jumped(own) if self.sure else None
        return moved and moved.hosted(self._hosts())

    def stood_in(self, own: rng.Streams, began: rng.Streams, ended: rng.Streams) -> bool:
        """In its place we drew what it alone draws, from `began` to `ended`; ours are `own`.

        False if its streams cannot be followed from there: those that chains carry must not move.
        """
        moved = [name for name in HOSTS if began.hosts[name] != ended.hosts[name]]
        if self.kin == "other" or any(HOSTS[name] in self.moving for name in moved):
            return False
        drawn = rng.draws_between(began.torch_cpu, ended.torch_cpu) or 1  # also what is not counted
        cpu, *cuda = self.theirs.streams.alone
        self.theirs, self.mine = self.theirs.copy(), self.mine.copy()
        self.theirs.streams = ended.with_alone([cpu + drawn, *cuda])
        self.mine.streams = own
        return True

    def _hosts(self) -> dict[str, bytes]:
        """Those streams of `rng.HOSTS` that move along the chain."""
        return {name: self.moving[key] for name, key in HOSTS.items() if key in self.moving}

    def require_hosts(
        self, own: Microbatch, following: rng.Streams, later: Sequence[Microbatch]
    ) -> None:
        """Raises NotReplayable if the streams of `rng.HOSTS`, or the script's own generators, moved
        in a way that no chain follows.

        `own` is our microbatch and `following` where our streams stood as the next one began;
        `later` are those of this step.
        """
        self._require_left(own, later)
        now = rng.read_hosts()
        for name, key in HOSTS.items():
            if key in self.moving:
                followed = own.hosts.get(name) == following.hosts[name]
            else:
                followed = own.streams.hosts[name] == now[name]
            if not followed:
                raise NotReplayable(NUMBERS_MOVE)

    def _require_left(self, own: Microbatch, later: Sequence[Microbatch]) -> None:
        """Chains end at a backward: what a generator gives behind it, none of them follows."""
        for key, (generator, left) in own.left.items():
            if key not in self.moving:
                continue
            stands: Any
            if not later:
                stands = ownrng.state_of(generator)
            elif isinstance(key, str):
                stands = later[0].generators.get(key)
            else:
                stands = later[0].attributes.get(key)
            if not same(left, stands):
                raise NotReplayable(
                    f"{named(key)} gives random numbers after a backward, too: where another "
                    "rank's stands cannot be told from this one's"
                )

    @property
    def point(self) -> tuple[int, int, int]:
        return self.theirs.point

    def go_on_from(self, interim: "Heritage") -> None:
        """`interim` is the same rank, for which we drew since this was captured."""
        self.theirs, self.mine = self.theirs.copy(), self.mine.copy()
        self.theirs.streams = interim.theirs.streams
        self.mine.streams = interim.mine.streams

    @property
    def kin(self) -> Kin:
        if self._kin is None:
            self._kin = kin_of(self.theirs.streams, self.mine.streams, shared=self.apart)
        return self._kin

    def _cross(self, ahead: Context | None, top: Context) -> None:
        """We went from one step to the next: would the rank have drawn what we drew there?"""
        here = ahead is not None and not draws(ahead.streams, top.streams, shared=self.apart)
        self.sure &= self.kin == "alike" or (self.kin == "fewer" and here and self._keeps_pace())
        if self.apart and any(self.theirs.streams.alone):
            self.sure &= self.led  # else only its deputy knows what it would have drawn here

    def _keeps_pace(self) -> bool:
        """Over the last step that both of us ended, did the rank draw as often as we did?"""
        if self._pace is None:
            theirs, mine = self.earlier or (None, None)
            self._pace = (
                theirs is not None
                and mine is not None
                and rng.apart(theirs.streams, mine.streams, shared=self.apart)
                == rng.apart(self.theirs.streams, self.mine.streams, shared=self.apart)
            )
        return self._pace

    def stands_at(self, step: int) -> bool:
        """Have we moved it along to the top of `step`?"""
        return self.mine.kind == "top" and self.mine.step == step

    def told(self, streams: rng.Streams) -> None:
        """A survivor that is sure says where the rank's streams stand at the top of this step."""
        self.theirs.streams = streams.hosted(self.theirs.streams.hosts)
        self.sure = self.counted = True

    def needs_seed(self, own: Microbatch, following: rng.Streams) -> bool:
        """Is our microbatch `own` only told because it seeds torch's numbers before it draws any?

        Raises NotReplayable if it draws from a stream that we are not sure of.
        """
        if self.sure or _torch(own.streams) == _torch(following):
            return False
        if not own.seeded:
            raise NotReplayable(STREAM_PARTED.format(rank=self.rank) if self.counted else UNTOLD)
        return True

    def go_back(self, index: int) -> None:
        """To microbatch `index`, which was executed as the rank before, or by another survivor that
        is lost now.
        """
        if self.moving and index < self.index:
            self.moving, self.bulk = self.past[index]
            self.index = index
            del self.past[index:]

    def differing(self, index: int) -> dict[Key, Any]:
        """What to put in place before microbatch `index`."""
        assert not self.moving or self.index == index, f"the chain is at {self.index}, not {index}"
        return {**self.fixed, **self.moving}

    def advance(self, names: Mapping[str, Any], values: Mapping[Key, Any]) -> None:
        """Microbatch `index` was executed as the rank; `values`: what moves, as it is now."""
        if self.moving:
            self.past.append((self.moving, self.bulk))
        self.moving = {key: values.get(key, old) for key, old in self.moving.items()}
        self.index += 1

    def end_step(self) -> None:
        self.step += 1
        self.index = 0
        self.past.clear()

    def follow(self, ahead: Context | None, top: Context) -> None:
        """A new step begins at our capture `top`; `ahead` is ours at the commit point before it.

        Raises NotReplayable if the rank can no longer be spoken for.
        """
        theirs = top.copy()
        theirs.alone_at = self.theirs.alone_at
        theirs.streams = self.streams_at(top.streams)
        self._cross(ahead, top)
        theirs.loaders = {
            number: self.theirs.loaders.get(number) or self.created(origin)
            for number, origin in top.loaders.items()
        }
        self.pairs.learn(theirs.loaders, top.loaders)
        self._require_fixed(top)
        if self.moving:
            self._require_chain(ahead, top)
        theirs.streams = theirs.streams.hosted(self._hosts())
        for key, value in {**self.fixed, **self.moving}.items():
            if key in HOSTS.values():
                continue
            if isinstance(key, str):
                theirs.names[key] = value
            else:
                theirs.attributes[key] = value
        self.earlier = None
        self.theirs, self.mine = theirs, top

    def _require_fixed(self, top: Context) -> None:
        """What has never moved must not begin to: a new epoch gives each rank another value."""
        begun = [
            key
            for key, value in self.fixed.items()
            if _has(top, key)
            and not same(_value(self.mine, key), _value(top, key))
            and self.matters(key, value)
        ]
        if begun:
            raise NotReplayable(parted(begun, "between steps"))

    def _require_chain(self, ahead: Context | None, top: Context) -> None:
        """The chain must reach this step, and nothing may move between two steps."""
        broken = self.step != top.step or self.index
        here = self.theirs.point == top.point
        if here and not broken:
            return
        apart = self._pass_gap(ahead, top) if ahead is not None else self._apart()
        if broken or apart:
            raise NotReplayable(parted(apart or self._apart(), "between steps"))

    def _apart(self) -> list[Key]:
        """What moves, and is not what we have: with it goes all that a microbatch changes."""
        moving = self.moving.items()
        apart = [key for key, value in moving if not same(value, _value(self.mine, key))]
        return apart or [*self.moving]

    def created(self, own: Origin) -> Origin:
        """Where the rank would have stood as it made an iterator that we made at `own`."""
        known = self.sure and own.streams is not None
        streams = own.streams and self._jumped(own.streams)
        return self.pairs.told(own, streams if known else None)


def heir_of(
    rank: int,
    left: Iterable[Context],
    captures: Mapping[tuple[int, int, int], Context],
    *,
    apart: bool,
) -> Heritage | None:
    """Lost `rank`, by the last context that it `left` at a point where we were, too."""
    met = [one for one in left if one.point in captures]
    met = sorted(
        (one for one in met if captures[one.point].loop == one.loop), key=lambda one: one.point
    )
    if not met:
        return None
    *before, theirs = met
    tops = [one for one in before if one.kind == "top"]
    earlier = (tops[-1], captures[tops[-1].point]) if tops else None
    return Heritage(rank, theirs, captures[theirs.point], earlier, apart=apart)


def parted(keys: Iterable[Key], where: str) -> str:
    """In one sentence, of what moves, the first few."""
    names = [named(key) for key in keys]
    first = ", ".join(names[:3]) + (" and more" if names[3:] else "")
    s = "s" if len(names) == 1 else ""
    return f"{first} differ{s} between ranks and move{s} {where}"


def _torch(streams: rng.Streams) -> tuple[bytes, ...]:
    return (streams.torch_cpu, *streams.torch_cuda)


def _moves(key: Key, own: list[Context]) -> bool:
    """Has our own value changed from one capture to another?"""
    values = [_value(one, key) for one in own if _has(one, key)]
    return any(not same(one, other) for one, other in zip(values, values[1:], strict=False))


def hosts_of(streams: rng.Streams) -> dict[Key, Any]:
    """The streams of `rng.HOSTS` by their keys in a chain."""
    return {HOSTS[name]: state for name, state in streams.hosts.items()}


def _has(context: Context, key: Key) -> bool:
    return key in (context.names if isinstance(key, str) else context.attributes)


def _value(context: Context, key: Key) -> Any:
    if key in HOSTS.values():
        return hosts_of(context.streams)[key]
    return context.names.get(key) if isinstance(key, str) else context.attributes.get(key)


def _last(key: Key) -> str:
    return key if isinstance(key, str) else key[-1]


def named(key: Key) -> str:
    return key if isinstance(key, str) else ".".join(key)
