"""The results of the runs of demo and inject, point by point. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from recoverrun.fault_injection.trial import Trial
from recoverrun.reports import figures
from recoverrun.reports.happenings import Death, Loss
from recoverrun.reports.history import History, recovery_of
from recoverrun.text import plural
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.fault_schedule import ALL, ScheduledKill, render
from rendezvous.protocol.incarnations import birth_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The output of recoverrun.worker.tools.compare_weights on the final parameters."""

    ranks: tuple[int, ...]
    elements: int
    max_abs_diff: float
    bound: float | None  # None: the script's log names no learning rates
    within: bool | None
    tensor: str  # that comes nearest to its bound

    @staticmethod
    def from_json(raw: object) -> "Comparison":
        """Take the answer of the comparison apart. Raises ValueError where it is another thing."""
        match raw:
            case {
                "ranks": list(compared),
                "elements": int(elements),
                "max_abs_diff": float(difference),
                "bound": None | float() as bound,
                "within": None | bool() as within,
                "worst": [{"name": str(tensor)}, *_],
            }:
                return Comparison(
                    ranks=tuple(int(rank) for rank in compared),
                    elements=elements,
                    max_abs_diff=difference,
                    bound=bound,
                    within=within,
                    tensor=tensor,
                )
            case _:
                raise ValueError(f"no comparison: {str(raw)[:200]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One thing that was to be shown."""

    held: bool | None  # None: this run cannot tell
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The outcome of a schedule of kills."""

    absorbed: tuple[Loss, ...]
    fatal: tuple[Loss, ...]  # losses that no step was committed after
    missed: tuple[
        ScheduledKill, ...
    ]  # never struck: the rank had left before, or the phase never came


def faults(kills: Sequence[ScheduledKill], history: History) -> Faults:
    """Sort the losses of a run, and the kills that caused none."""
    made_good = [loss for loss in history.losses if recovery_of(history, loss) is not None]
    # A loss after the last commit needs no recovery where the run came to its end without it.
    ended_well = history.exit_code == 0
    return Faults(
        absorbed=tuple(history.losses if ended_well else made_good),
        fatal=() if ended_well else tuple(x for x in history.losses if x not in made_good),
        missed=_missed(kills, history),
    )


def _missed(kills: Sequence[ScheduledKill], history: History) -> tuple[ScheduledKill, ...]:
    """Those whose rank has no death left for them: of its first process, or of the one that was
    started again for it the so-and-so-many-th time.
    """
    on_the_way = (death for way in history.returns.ways for death in way.ended)
    struck = [one for one in (*history.deaths, *on_the_way) if not one.ours and one.signal]
    gone = [one for one in history.deaths if one.kind == "node-lost"]
    keepers = history.steps_back.keepers  # that ended
    missed = []
    for kill in kills:
        if kill.keeper:
            keepers -= 1
            missed += [kill] if keepers < 0 else []
            continue
        mine = [one for one in struck if kill.rank in (one.rank, ALL) and _fits(kill, one)]
        if mine and kill.rank == ALL:
            struck = [one for one in struck if one.attempt != mine[0].attempt]
        elif mine:
            struck.remove(mine[0])
        elif not any(kill.node and kill.rank in one.ranks for one in gone):
            missed.append(kill)
    return tuple(missed)


def _fits(kill: ScheduledKill, death: Death) -> bool:
    birth = birth_of(death.incarnation)
    return kill.when == "step" or birth == (kill.nth if kill.when == "return" else 0)


def ledger_point(name: str, trial: Trial) -> Point:
    """True if the journal proves that each step had exactly its microbatches."""
    proof = trial.proof
    text = f"{name}: {proof.exact}/{proof.steps} steps with exactly {proof.microbatches}"
    problems = [violation.what for violation in proof.violations] or list(proof.unproved)
    more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
    held = {"proved": True, "violated": False, "unproved": None}[proof.verdict]
    if trial.goes_back:
        words = f"{name}: all ranks went back {plural(len(trial.ways_back), 'time')}, "
        return Point(held=None, text=f"{words}microbatches are not counted where nobody votes")
    if held and not proof.microbatches:
        what = f"{plural(proof.steps, 'step')} of an unprotected run"
        return Point(held=None, text=f"{name}: {what}, whose microbatches are not counted")
    return Point(held=held, text=f"{text} microbatches" + (f": {problems[0]}{more}" if problems
                                                          else ""))  # fmt: skip


def faults_point(kills: Sequence[ScheduledKill], history: History) -> Point:
    """True if the job lived on after each loss."""
    sorted_out = faults(kills, history)
    struck = len(kills) - len(sorted_out.missed)
    text = f"{plural(struck, 'kill')}, {plural(figures.survived(history), 'loss')} survived"
    if figures.returned(history):
        text += f", {plural(figures.returned(history), 'return')}"
    if history.steps_back.found:
        text += f", {plural(len(history.steps_back.found), 'way')} back to a snapshot"
    if sorted_out.missed:
        text += f"; never struck: {render(sorted_out.missed)}"
    return Point(held=not sorted_out.fatal and struck > 0, text=text)


def returns_point(history: History, notices: Sequence[str]) -> Point:
    """True if each replica that was lost takes part again at the end."""
    away = sorted({history.slot_of(rank) for rank in _away(history)})
    back = figures.returned(history)
    if not away:
        return Point(held=True, text=f"{plural(back, 'replica')} came back")
    told = (one.removeprefix(NEVER) for one in notices if one.startswith(NEVER))
    why = next(told, "the run was over too soon")
    slots = ", ".join(map(str, away))
    return Point(held=None, text=f"replica {slots} did not come back: {why}")


NEVER = "a lost replica does not come back: "
"""So begins what a run says of a script in which no fresh process can take a lost one's place."""


def weights_point(comparison: Comparison | None, trial: Trial) -> Point:
    """True if the final weights agree as far as the promise of the run goes."""
    if comparison is None:
        return Point(held=None, text="the final weights could not be compared")
    difference = f"max |Δw| {comparison.max_abs_diff:.1e}"
    if comparison.max_abs_diff == 0.0:
        return Point(held=True, text=f"{difference}: bitwise the same weights")
    if comparison.within:
        words = f"{difference}, at most {comparison.bound:.1e} by the order of fp32 sums"
        return Point(held=True, text=f"{words} ({comparison.tensor})")
    promise = trial.history.promise or "unknown"
    if promise != "exact-samples" or trial.weakened:
        why = trial.weakened or f"the promise is {promise}: {trial.history.promise_reason}"
        return Point(held=None, text=f"{difference}, not judged: {why}")
    if comparison.bound is None:
        return Point(held=None, text=f"{difference}, not judged: the log names no learning rates")
    words = f"{difference}, BEYOND {comparison.bound:.1e} by the order of fp32 sums"
    return Point(held=False, text=f"{words} ({comparison.tensor})")


def backs_points(trial: Trial) -> list[Point]:
    """Each way of all ranks back to a snapshot: True if they stood there again."""
    ways = [Point(held=way.away_ms >= 0 or None, text=str(way)) for way in trial.ways_back]
    return ways or [Point(held=False, text="no snapshot was gone back to")]


def same_weights_point(comparison: Comparison | None) -> Point:
    """True if they are the same in every bit: steps are done again, nothing is made up."""
    if comparison is None:
        return Point(held=None, text="the final weights could not be compared")
    difference = f"max |Δw| {comparison.max_abs_diff:.1e}"
    if comparison.max_abs_diff == 0.0:
        return Point(held=True, text=f"{difference}: bitwise the same weights")
    return Point(held=False, text=f"{difference} ({comparison.tensor}), where all bits are equal")


def witness_point(comparison: Comparison | None, history: History) -> Point:
    """True if each survivor's weights were among those that were compared."""
    world = history.world_size
    lost = {rank for rank in _away(history) if 0 <= rank < world}
    compared = {rank for rank in comparison.ranks if 0 <= rank < world} if comparison else set()
    survivors, shown = world - len(lost), len(compared - lost)
    text = f"final weights of {shown} of {plural(survivors, 'survivor')} compared"
    return Point(held=True if shown == survivors else None, text=text)


def _away(history: History) -> set[int]:
    """Ranks that were lost, and have not come back since."""
    return {
        rank
        for loss in history.losses
        if loss.life == history.returns.life(loss.attempt, loss.slot)
        for rank in loss.ranks
    }


def exit_code(points: Sequence[Point]) -> int:
    """85 where something is wrong, 1 where something could not be shown, else 0."""
    if any(point.held is False for point in points):
        return ExitCode.INVARIANT
    return ExitCode.FAILED if any(point.held is None for point in points) else ExitCode.DONE
