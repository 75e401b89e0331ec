"""The directory that a person means by RUN: a path, a name below ./runs, its beginning, `latest`.

The beginning ends before a dash: `88121` of Slurm's job 88121, whose runs are 88121-0, 88121-1.
"""

from glob import escape
from pathlib import Path

from recoverrun.text import sanitize
from rendezvous.journal.reader import RunLog
from rendezvous.journal.run_number import run_number

RUNS = "runs"
PATTERN = "events.*.jsonl"


class RunNotFound(Exception):
    """No such run; the message says what was looked for and what to type next."""


def find_run(name: str, base: Path) -> Path:
    """The directory with the journals of RUN, seen from the directory `base`."""
    if name == "latest":
        found = _newest_below(base / RUNS, "*", base)
        if found is None:
            raise RunNotFound(
                f"there is no run below {base / RUNS}: name a run directory, or start one with "
                "`recoverrun train.py`"
            )
        return found
    for place in (base / name, base / RUNS / name):
        if has_journal(place):
            return place
        below = _newest_below(place, "*", base)
        if below is not None:
            return below
    if name == Path(name).name:
        begun = _newest_below(base / RUNS, f"{escape(name)}-*", base)
        if begun is not None:
            return begun
    looked = dict.fromkeys(map(str, (base / name, base / RUNS / name)))  # alike if absolute
    raise RunNotFound(
        f"no journal ({PATTERN}) in {' or '.join(looked)}: "
        "try `latest`, or the directory that recoverrun printed at its start"
    )


def strangers(log: RunLog) -> str:
    """The reason why these journals are not of one run, or "" if they may be."""
    names: dict[str, set[str]] = {}
    for entry in log.of("run.start"):  # A directory that was named twice holds two runs.
        name = entry.text("folder") or entry.text("run_id")
        names.setdefault(entry.node, set()).add(name)
    if not names or set.intersection(*names.values()):
        return ""
    shown = sorted({min(found) for found in names.values()})
    return f"these journals are of {len(shown)} runs: {sanitize(', '.join(shown), 200)}"


def has_journal(place: Path) -> bool:
    try:
        return any(place.glob(PATTERN))
    except OSError:
        return False


def _newest_below(top: Path, folder: str, base: Path) -> Path | None:
    """The newest run below `top`, at most two levels down, of those whose own folder has a name of
    this pattern: by the numbers of runs below `base`, and where these do not tell, the one whose
    journal was written last.
    """
    try:
        journals = [*top.glob(f"{folder}/{PATTERN}"), *top.glob(f"*/{folder}/{PATTERN}")]
    except OSError:
        return None
    # Through a link such as `latest` the same run would be found under a second name.
    places = sorted({path.parent.resolve() for path in journals})
    runs = base / RUNS
    return max(
        places, key=lambda place: (run_number(place, runs), _written_at(place)), default=None
    )


def _written_at(place: Path) -> float:
    times = []
    for path in place.glob(PATTERN):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue  # Removed between the listing and the question.
    return max(times, default=0.0)
