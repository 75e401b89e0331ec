"""All committed steps of a run as rows, for spreadsheets and data frames."""

import csv
from collections.abc import Iterator
from io import StringIO

from recoverrun.reports.history import History

HEADS = (
    "attempt", "step", "time_s", "step_ms", "generation", "live_replicas", "microbatches",
    "redone", "taken_over", "largest_quota",
)  # fmt: skip
"""`time_s` is from the start of the run to the commit; `taken_over` counts what replicas computed
in the place of others, `redone` of that what was lost in this very step."""


def step_rows(facts: History) -> Iterator[str]:
    """The lines of a CSV file, heads first."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADS)
    for commit in facts.commits:
        counts = [count for count in commit.quota.values() if count > 0]
        writer.writerow((
            commit.attempt, commit.step, round(commit.ts - facts.began, 6), commit.ms,
            commit.generation, len(counts), commit.total, commit.redone,
            commit.taken_over, max(counts, default=0),
        ))  # fmt: skip
        yield out.getvalue()
        out.seek(0)
        out.truncate()
    if not facts.commits:
        yield out.getvalue()
