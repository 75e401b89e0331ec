"""Fault schedules: which rank is to be killed in which step and phase.

Grammar: entries joined by ",". `r3@step:12:reduce` kills rank 3 in step 12 (from 0) while it
reduces; `reduce:K` fixes the moment to just after bucket K's all-reduce was launched, without it
the middle bucket is meant. `random:SEED:N` stands for N kills drawn from that seed; it needs the
size of the world and the number of steps, so the command expands it before any worker reads it.

Where a job takes snapshots, `r3@step:12:snapshot` ends rank 3 amid the copying of the one of step
12, `:parity` while its node makes parity of that, and `:restore` amid the first way back to it.
`keeper3` in the place of `r3` ends the keeper of the node of rank 3, `node3` that node; without a
number that of rank 0; `all` ends all ranks, by default in `backward`.

`r3@return:prologue` kills the process that was started in lost rank 3's place, `r3@return:2:ready`
the second such process. `r0@welcome:send` kills rank 0 as others take part again, `welcome:2:...`
the second time that it stops for others. Phases of a step then mean the one that the return is in.
`:node` at the end of an entry lets the rank end its launcher first: its node is lost.
`pace:500` lets each step take 500 ms at least while a replica is away.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

Phase = Literal[
    "forward", "backward", "reduce", "vote", "between", "redo", "snapshot", "parity", "restore"
]
PHASES: tuple[Phase, ...] = get_args(Phase)

OF_SNAPSHOTS: tuple[Phase, ...] = ("snapshot", "parity", "restore")
"""Where the step of a kill is that of a snapshot."""

OF_STEPS: tuple[Phase, ...] = tuple(phase for phase in PHASES if phase not in OF_SNAPSHOTS)
"""Phases of any step of a job with several replicas."""

DRAWN: tuple[Phase, ...] = tuple(phase for phase in OF_STEPS if phase != "redo")
"""Phases of random kills: nothing is redone before another rank was lost."""

ReturnPhase = Literal["prologue", "ready", "receive", "wind", "place"]
RETURN_PHASES: tuple[ReturnPhase, ...] = get_args(ReturnPhase)
"""Of a process that is to take a lost rank's place, before its first step."""

WelcomePhase = Literal["hold", "give", "send"]
WELCOME_PHASES: tuple[WelcomePhase, ...] = get_args(WelcomePhase)
"""Of a member, as others take part again."""

When = Literal["step", "return", "welcome"]

OF: dict[When, tuple[str, ...]] = {
    "step": PHASES,
    "return": (*RETURN_PHASES, *OF_STEPS),
    "welcome": (*WELCOME_PHASES, *OF_STEPS),
}
"""The phases that a kill may name."""

MIDDLE = -1
"""The bucket of a kill in `reduce` that names none."""

NO_STEP = -1
"""The step of a kill in a return: nobody knows it beforehand."""

ALL = -1
"""The rank of a kill of all ranks."""

USUAL: dict[str, Phase] = {"all": "backward", "keeper": "snapshot", "node": "snapshot"}
"""The phase of a kill that names none, by whom it ends."""

_KILL = re.compile(
    r"(?:r(?P<rank>[0-9]{1,9})|(?P<who>all)|(?P<what>keeper|node)(?P<of>[0-9]{1,9})?)@"
    r"(?:step:(?P<step>[0-9]{1,9})|(?P<when>return|welcome)(?::(?P<nth>[0-9]{1,9}))?)"
    r"(?::(?P<phase>[a-z]+))?(?::(?P<bucket>[0-9]{1,9}))?(?P<node>:node)?",
    re.ASCII,
)
_PACE = re.compile(r"pace:([0-9]{1,6})", re.ASCII)
_RANDOM = re.compile(r"random:([0-9]{1,18}):([0-9]{1,6})", re.ASCII)


FORMS = (
    "r3@step:12:reduce, r3@return:ready, r0@welcome:send, all@step:12, keeper@step:12:restore "
    "or random:SEED:N"
)


class ScheduleError(ValueError):
    """The text is no fault schedule, or asks for the impossible. One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledKill:
    """`rank` sends itself SIGKILL in `step` at `phase`, or in its `nth` return or welcome.

    `rank` may be ALL. With `keeper` it is the keeper of its node that ends.
    """

    rank: int
    phase: Phase | ReturnPhase | WelcomePhase
    step: int = NO_STEP
    bucket: int = MIDDLE
    when: When = "step"
    nth: int = 1
    node: bool = False  # its launcher is killed first
    keeper: bool = False


def parse(text: str) -> tuple[ScheduledKill, ...]:
    """The kills that `text` names, in its order; () for "". Raises ScheduleError."""
    return tuple(_kill(entry) for entry in _entries(text) if not _PACE.fullmatch(entry))


def pace_ms(text: str) -> int:
    """The least length of a step while a replica is away, 0 if `text` has none."""
    found = (_PACE.fullmatch(entry) for entry in _entries(text))
    return max((int(one[1]) for one in found if one), default=0)


def expand(text: str, *, world: int, steps: int) -> tuple[ScheduledKill, ...]:
    """Parse as `parse`, with `random:SEED:N` drawn for a job of this size, and check against it."""
    kills: list[ScheduledKill] = []
    for entry in _entries(text):
        drawn = _RANDOM.fullmatch(entry)
        if drawn:
            seed, n = int(drawn[1]), int(drawn[2])
            kills += expand_random(seed, n, world, steps)
        elif not _PACE.fullmatch(entry):
            kills.append(_kill(entry))
    for kill in kills:
        for number, all_of_them, name in ((kill.rank, world, "rank"), (kill.step, steps, "step")):
            if number >= all_of_them:
                last = f"the last {name} of this run is {all_of_them - 1}"
                raise ScheduleError(f"{render((kill,))} is outside of this run: {last}")
    return tuple(kills)


def of_attempt(text: str, attempt: int) -> str:
    """The part of `text` for processes of that attempt: a fault planned for a step strikes once,
    and not again as that is done again. A pace holds in all of them.
    """
    kills = [k for k in parse(text) if attempt == (1 if k.phase == "restore" else 0)]
    return render(kills, pace=pace_ms(text))


def expand_random(seed: int, n: int, world: int, steps: int) -> tuple[ScheduledKill, ...]:
    """`n` kills of different ranks, in order of time, the same for the same arguments.

    One rank is always spared. Step 0 is too: nothing is protected before a first step showed how
    the script works.
    """
    if n >= world:
        raise ScheduleError(f"{n} random kills would leave none of {world} ranks")
    if n and steps < 2:
        raise ScheduleError(f"{steps} steps are too few for a kill after the first of them")
    draws = _Draws(seed)
    ranks = list(range(world))
    kills = []
    for _ in range(n):
        rank = ranks.pop(draws.below(len(ranks)))
        step = 1 + draws.below(steps - 1)
        kills.append(ScheduledKill(rank=rank, step=step, phase=DRAWN[draws.below(len(DRAWN))]))
    return tuple(sorted(kills, key=lambda kill: (kill.step, kill.rank)))


def require_returns(kills: Sequence[ScheduledKill], *, returns: bool) -> None:
    """Raise ScheduleError for a kill that waits for a return where nobody comes back."""
    odd = next((kill for kill in kills if kill.when != "step" and not returns), None)
    if odd is not None:
        raise ScheduleError(f"{render((odd,))} is within a return: it needs --return")


def require_snapshots(kills: Sequence[ScheduledKill], *, snapshots: bool) -> None:
    """Raise ScheduleError for a kill of what only a job with snapshots has."""
    odd = next((k for k in kills if (k.keeper or k.phase in OF_SNAPSHOTS) and not snapshots), None)
    if odd is not None:
        raise ScheduleError(f"{render((odd,))} needs a job that takes snapshots (--snapshot-every)")


def render(kills: Sequence[ScheduledKill], *, pace: int = 0) -> str:
    """The text that `parse` turns into `kills`, and `pace_ms` into `pace`."""
    return ",".join([*map(_rendered, kills), *([f"pace:{pace}"] if pace else [])])


def _rendered(kill: ScheduledKill) -> str:
    nth = f":{kill.nth}" if kill.nth != 1 else ""
    place = f"step:{kill.step}" if kill.when == "step" else f"{kill.when}{nth}"
    bucket = f":{kill.bucket}" if kill.bucket != MIDDLE else ""
    who = "all" if kill.rank == ALL else f"{'keeper' if kill.keeper else 'r'}{kill.rank}"
    return f"{who}@{place}:{kill.phase}{bucket}{':node' if kill.node else ''}"


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",")] if text.strip() else []


def _kill(entry: str) -> ScheduledKill:
    if _RANDOM.fullmatch(entry):
        raise ScheduleError(f"{entry!r} must be expanded before a worker reads it")
    match = _KILL.fullmatch(entry)
    if match is None:
        raise ScheduleError(f"{entry!r} is not of the form {FORMS}")
    when = cast(When, match["when"] or "step")
    what = match["what"] or match["who"] or ""
    phase, bucket, nth = match["phase"] or USUAL.get(what), match["bucket"], int(match["nth"] or 1)
    if phase is None:
        raise ScheduleError(f"{entry!r} is not of the form {FORMS}")
    if phase not in OF[when]:
        known = ", ".join(OF[when])
        raise ScheduleError(f"{entry!r}: in a {when} a phase is one of {known}, not {phase!r}")
    if bucket is not None and phase != "reduce":
        raise ScheduleError(f"{entry!r}: only reduce takes the number of a bucket")
    if not nth:
        raise ScheduleError(f"{entry!r}: the first {when} is number 1")
    if what and when != "step":
        raise ScheduleError(f"{entry!r}: within a {when} it is a rank that ends, such as r3")
    if what == "keeper" and (phase not in OF_SNAPSHOTS or match["node"]):
        known = ", ".join(OF_SNAPSHOTS)
        raise ScheduleError(f"{entry!r}: a keeper ends in one of {known}, and alone")
    if what == "all" and phase == "parity":
        raise ScheduleError(f"{entry!r}: each node makes parity at its own time, name one")
    return ScheduledKill(
        rank=ALL if what == "all" else int(match["rank"] or match["of"] or 0),
        step=int(match["step"]) if when == "step" else NO_STEP,
        phase=cast(Phase, phase),
        bucket=MIDDLE if bucket is None else int(bucket),
        when=when,
        nth=nth,
        node=bool(match["node"]) or what == "node",
        keeper=what == "keeper",
    )


class _Draws:
    """SplitMix64 (Steele, Lea, Flood 2014): a seed means the same on every Python, for ever."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, bound: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return (z ^ (z >> 31)) % bound


_MASK = (1 << 64) - 1
