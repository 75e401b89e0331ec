"""The numbers of a run that people read, each by one function: `status`, `postmortem`, the last
line of a run, metrics and JSON take them from here, and where its time went from `goodput`.
"""

from collections.abc import Sequence

from recoverrun.reports.happenings import Recovery
from recoverrun.reports.history import History, recovery_of
from recoverrun.reports.recoveries import distinct
from recoverrun.text import plural


def steps_done(facts: History) -> int:
    """The script's steps that this run has done; one that was done twice is one."""
    return facts.time.script.done


def steps_again(facts: History) -> int:
    """Committed steps that had been done before, as far as is known."""
    return facts.time.script.again


def newest_step(facts: History) -> int:
    """The number of the newest committed step, as its attempt counts; -1 before the first."""
    return facts.commits[-1].step if facts.commits else -1


def restarts(facts: History) -> int:
    """The number of restarts of all processes."""
    return facts.attempt


def survived(facts: History) -> int:
    """Lost replicas without which the others made their step whole."""
    return sum(recovery_of(facts, loss) is not None for loss in facts.losses)


def returned(facts: History) -> int:
    """Lost replicas that took part again."""
    return len(facts.returns.backs)


def recoveries(facts: History) -> tuple[Recovery, ...]:
    """Each one once, whoever told it."""
    return distinct(facts.recoveries)


def lost_s(facts: History) -> float:
    """Seconds from losses to whole steps without them, and until all stood at a snapshot again."""
    away_ms = sum(max(0.0, one.away_ms) for one in facts.steps_back.found)
    return (sum(one.total_ms for one in recoveries(facts)) + away_ms) / 1000


def redone(facts: History) -> int:
    """Microbatches that were lost in their step and computed again."""
    return sum(max(0, one.redone) for one in recoveries(facts))


def taken_over(facts: History, moved: int) -> int:
    """Microbatches that others computed as planned, of those that `moved` in all steps."""
    return max(0, moved - redone(facts))


def went_back(facts: History) -> str:
    """The number of ways back, and of steps done again, in words; "" if there was none."""
    back, started = len(facts.steps_back.found), restarts(facts)
    parts = [f"all ranks went back {plural(back, 'time')}"] if back else []
    parts += [plural(started - back, "restart")] if started > back else []
    again = steps_again(facts)
    return ", ".join(parts) + (f" ({plural(again, 'step')} done again)" if parts and again else "")


def steps_in_words(facts: History, committed: Sequence[object]) -> str:
    """The number of steps done; where records are missing, of those on record."""
    if facts.missing:
        return plural(len(committed), "recorded step")
    return plural(steps_done(facts), "step")
