"""A row in which a rank is killed, and its replica is to come back."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from recoverrun.fault_injection.trial import Trial
from recoverrun.reports.history import History
from recoverrun.worker.tools.compare_weights import parameters
from rendezvous.journal.reader import Entry, read_run
from rendezvous.protocol.arrival_messages import REFUSE_RETURN
from tests.compat.row import Row
from tests.compat.trials import Outcome, judge, run
from tests.compat.watched_run import PATIENCE, watched

WITHIN_S = 400.0
YES = "yes"
LOWERED = "yes; from then on equal-count: {}"
OF_PROMISE = ("promised ", "the promise was not taken back", "max |dw|")
"""How problems begin that follow from a promise which was taken back, with its reason."""


def victims(row: Row) -> tuple[int, ...]:
    """One that is not the first rank, and the first rank, if the row lets it be killed."""
    among = row.victims or tuple(range(row.ranks))
    return tuple(dict.fromkeys((among[len(among) // 2], among[0])))


def tried(row: Row, plain: Path, folder: Path, victim: int) -> Outcome:
    """One trial: `plain` holds the run without a loss."""
    inject = f"r{victim}@step:{row.returns_after}:{row.returns_at}"
    go = folder / "go"
    # Survivors wait for their replica, or for the word that nobody comes.
    with watched(folder / "run", go, refuses, since=starts_again):
        trial = run(
            row,
            folder,
            inject,
            {"COMPAT_GO": str(go)},
            options=("--return",),
            path=(PATIENCE,),
            within_s=WITHIN_S,
        )
    return judge(row, plain, folder, inject, trial)


def refuses(entry: Entry) -> bool:
    """True if a rank says that nobody comes back."""
    return entry.event == "notice.give" and entry.text("event") == REFUSE_RETURN


def starts_again(entry: Entry) -> bool:
    return entry.event == "replica.start"


def said(outcome: Outcome, plain: Path, folder: Path, victim: int) -> tuple[str, Sequence[str]]:
    """The outcome in words for the table, and what is wrong with it."""
    trial = outcome.trial
    refused = [one.reason for one in read_run(trial.run_dir).of("notice.give") if refuses(one)]
    problems = [*outcome.problems]
    if trial.exit_code == 0:
        problems += _unequal(plain / "witness", folder / "witness", trial.history)
    back = [way for way in trial.history.returns.backs if victim in way.ranks]
    if back and not refused:
        problems += _took_part(trial, victim)
        reason = trial.history.promise_reason
        if (
            outcome.row.promise == "exact-samples"
            and trial.history.promise == "equal-count"
            and reason
        ):
            problems = [one for one in problems if not one.startswith(OF_PROMISE)]
            return LOWERED.format(reason), problems
        return YES, problems
    if not refused:
        problems.append(f"it did not come back, and nothing was said: {trial.notices}")
    return " / ".join(dict.fromkeys(refused)), problems


def _took_part(trial: Trial, victim: int) -> Iterator[str]:
    """It was there to the end, and nothing else was lost."""
    lost = [one.slot for one in trial.history.losses]
    if len(lost) > 1:
        yield f"replicas {lost} were lost one after another"
    if not (trial.run_dir.parent / "witness" / f"rank{victim}.pt").exists():
        yield f"rank {victim} came back, and did not come to the end"


def _unequal(plain: Path, witness: Path, history: History) -> Iterator[str]:
    """Ranks that hold the same shard hold the same weights, to the bit.

    What differs between ranks without a loss may differ here: running statistics of a BatchNorm do.
    """
    for ranks in zip(*history.replicas, strict=True):
        there = [rank for rank in ranks if (witness / f"rank{rank}.pt").exists()]
        for rank in there[1:]:
            usual = _differing(plain, there[0], rank)
            if more := _differing(witness, there[0], rank) - usual:
                names = ", ".join(sorted(more)[:3])
                yield f"ranks {there[0]} and {rank} hold other weights ({names})"


def _differing(witness: Path, one: int, two: int) -> set[str]:
    """The names of what two ranks hold, where it is not the same."""
    held, other = (parameters(witness / f"rank{rank}.pt") for rank in (one, two))
    same = {name for name in held.keys() & other.keys() if torch.equal(held[name], other[name])}
    return (held.keys() | other.keys()) - same
