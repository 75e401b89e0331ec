"""The last line of a run that survived losses: a pure function of its journal."""

from pathlib import Path

from recoverrun.reports import figures
from recoverrun.reports.history import history
from recoverrun.text import plural, sanitize, span
from rendezvous.journal.reader import RunLog


def closing_line(log: RunLog, run_dir: Path) -> str:
    """One line: steps, losses, returns and restarts, the time lost, where to read more; "" where
    nothing was lost.
    """
    facts = history(log)
    survived, began_again = figures.survived(facts), figures.went_back(facts)
    if not survived and not began_again:
        return ""
    steps, back = figures.steps_done(facts), figures.returned(facts)
    parts = [plural(steps, "step")] if steps else []
    parts += [f"{plural(survived, 'loss')} survived"] if survived else []
    parts += [f"{plural(back, 'replica')} back"] if back else []
    parts += [began_again] if began_again else []
    lost_s = figures.lost_s(facts)
    parts += [f"{span(lost_s)} lost"] if lost_s else []
    parts.append(f"postmortem: recoverrun postmortem {sanitize(str(run_dir), 160)}")
    return f"✓ {' · '.join(parts)}"
