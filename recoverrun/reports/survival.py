"""What a run says last that went well in spite of losses: a pure function of its journal."""

from pathlib import Path

from recoverrun.reports.history import history, recovery_of
from recoverrun.reports.recoveries import time_lost_s
from recoverrun.reports.steps_back import went_back
from recoverrun.text import plural, sanitize, span
from rendezvous.journal.reader import RunLog


def survival(log: RunLog, run_dir: Path) -> str:
    """One line: steps, losses and returns, the time lost, where to read more; "" without a loss."""
    facts = history(log)
    survived = sum(recovery_of(facts, loss) is not None for loss in facts.losses)
    back_to = facts.steps_back.found
    if not survived and not back_to:
        return ""
    # Counted from 0, and by the newest: a coordinator that took over has not seen the first ones.
    steps = 1 + max((commit.step for commit in facts.commits), default=-1)
    parts = [plural(steps, "step")] if steps else []
    parts += [f"{plural(survived, 'loss')} survived"] if survived else []
    parts += [went_back(back_to).removeprefix(", ")] if back_to else []
    back = len(facts.returns.backs)
    if back:
        parts.append(f"{plural(back, 'replica')} back")
    if facts.attempts > 1:
        parts.append(plural(facts.attempts - 1, "restart"))
    lost_s = time_lost_s(facts.recoveries) + sum(max(0.0, one.away_ms) for one in back_to) / 1000
    parts.append(f"{span(lost_s)} lost")
    parts.append(f"postmortem: recoverrun postmortem {sanitize(str(run_dir), 160)}")
    return f"✓ {' · '.join(parts)}"
