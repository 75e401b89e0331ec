"""`python -m tests.e2e.torture --minutes 10`: one run that loses replicas all the time.

Processes are killed from outside at random moments, those on their way back as well, as long as one
replica is left. After every few kills the weights that all ranks have had since are compared, step
by step and bit by bit, with those of the same training without a loss, which is made first.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.runs import Run, recoverrun

OPTIONS = ("--exact", "--return")
SPARE_S = 120.0
"""What a run may take beyond its time, on a machine that is busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tortured:
    """`ranks` workers of scripts/tortured.py; `shards` of a replica with FSDP2, 0 with DDP."""

    ranks: int
    shards: int
    steps: int
    pace_s: float

    script = "tortured.py"

    @property
    def name(self) -> str:
        return f"{'fsdp2' if self.shards else 'ddp'} {self.replicas}x{max(1, self.shards)}"

    @property
    def replicas(self) -> int:
        return self.ranks // max(1, self.shards)

    @property
    def arguments(self) -> tuple[str, ...]:
        return (f"--steps={self.steps}", f"--shards={self.shards}", f"--pace={self.pace_s}")


class Tireless(Run):
    """Its lost replicas are started again however often they are lost."""

    program = ("-m", "tests.e2e.tireless")


@dataclass(slots=True)
class Book:
    """The findings. `digests` are those without a loss: by rank, then by step."""

    digests: dict[int, dict[int, str]]
    kills: int = 0
    on_the_way: int = 0  # of these, of processes that had not come back yet
    compared: int = 0  # weights of a rank after a step
    wrong: list[str] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)  # bytes of each rank's file

    def compare(self, run: Run) -> None:
        """Look at what was written since the last time."""
        for rank, known in self.digests.items():
            path = run.out / f"digests{rank}"
            text = path.read_bytes()[self.seen.get(rank, 0) :] if path.exists() else b""
            self.seen[rank] = self.seen.get(rank, 0) + len(text)
            for line in text.decode().splitlines():
                step, digest = line.split()
                self.compared += 1
                if known[int(step)] != digest:
                    self.wrong.append(f"rank {rank} has other weights after step {step}")


def digests_of(run: Run, ranks: int) -> dict[int, dict[int, str]]:
    found = {}
    for rank in range(ranks):
        lines = (run.out / f"digests{rank}").read_text().splitlines()
        found[rank] = {int(step): digest for step, digest in map(str.split, lines)}
    return found


def torture(
    job: Tortured, run: Run, book: Book, rng: random.Random, args: argparse.Namespace
) -> None:
    """Kill one process after another until the time is over."""
    run.await_record("promise.state")
    until = time.monotonic() + 60 * args.minutes
    while time.monotonic() < until and not over(run):
        pause(run, rng.expovariate(args.per_minute / 60))
        victim = choose(job, run, rng)
        if victim is None:
            continue
        rank, pid, member = victim
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
        book.kills += 1
        book.on_the_way += not member
        if book.kills % args.check == 0:
            book.compare(run)
            live = len(live_slots(job, run))
            print(
                f"{book.kills} kills · step {newest(run)} · {live} of {job.replicas} replicas · "
                f"{book.compared} weights compared, {len(book.wrong)} wrong", flush=True,
            )  # fmt: skip
    if args.settle:
        settle(job, run)


def over(run: Run) -> bool:
    return bool(run.records("run.end"))


def pause(run: Run, seconds: float) -> None:
    """Let the run go on; it ends this, too, if it ends."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not over(run):
        run.tick()


def settle(job: Tortured, run: Run) -> None:
    """Wait until all replicas train again."""
    while len(live_slots(job, run)) < job.replicas and not over(run):
        if any("does not come back" in one["reason"] for one in run.records("notice.give")):
            return
        run.tick()


def live_slots(job: Tortured, run: Run) -> list[int]:
    views = run.records("view.change")
    return list(views[-1]["live"]) if views else list(range(job.replicas))


def newest(run: Run) -> int:
    commits = run.records("step.commit")
    return int(commits[-1]["step"]) if commits else -1


def choose(job: Tortured, run: Run, rng: random.Random) -> tuple[int, int, bool] | None:
    """A rank, its newest process, and whether that is a member; None if nobody can be spared."""
    live = live_slots(job, run)
    ended = {(one["rank"], one["pid"]) for one in run.records("worker.exit")}
    pids = {one["rank"]: one["pid"] for one in run.records("worker.spawn")}
    wide = max(1, job.shards)
    there = [rank for rank, pid in sorted(pids.items()) if (rank, pid) not in ended]
    rank = rng.choice(there)
    member = rank // wide in live
    if member and len(live) == 1:
        return None
    return rank, int(pids[rank]), member


@contextmanager
def started(
    job: Tortured, folder: Path, run: type[Run], options: tuple[str, ...], bound_s: float
) -> Iterator[Run]:
    one = run(job, folder, options=options, bound_s=bound_s)  # type: ignore[arg-type]
    try:
        yield one
    finally:
        one.end()


def report(
    job: Tortured, run: Run, book: Book, code: int, took_s: float, left: dict[int, str]
) -> int:
    commits = run.records("step.commit")
    full = sum(one["microbatches"] == one["total"] == job.replicas for one in commits)
    whole = sum(len(one["quota"]) == job.replicas for one in commits)
    done = recoverrun("postmortem", str(run.journal), "--verify", "--json")
    proof = json.loads(done.stdout)["invariant"] if done.stdout else {"verdict": done.stderr}
    notices = [one["reason"] for one in run.records("notice.give")]
    returns = run.records("replica.return")
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{job.name}: {took_s:.0f} s, {len(commits)} steps, exit code {code}, load {load}")
    print(f"kills          {book.kills}, of these {book.on_the_way} of processes on their way back")
    print(f"lost, back     {len(run.records('replica.lost'))}, {len(returns)}")
    for name, count in (("full batch", full), ("all replicas", whole)):
        print(f"{name:<14} {count} of {len(commits)} steps ({100 * count / len(commits):.2f} %)")
    print(f"weights        {book.compared} compared bit by bit, {len(book.wrong)} wrong")
    print(f"ledger         {proof['verdict']}; processes left: {len(left)}")
    for one in [*book.wrong[:3], *notices[:5], *left.values()]:
        print(f"  {one}")
    fine = code == 0 and not book.wrong and not left and proof["verdict"] == "proved"
    return 0 if fine and full == len(commits) == job.steps else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--per-minute", type=float, default=4, help="kills")
    parser.add_argument(
        "--check", type=int, default=5, help="kills from one comparison to the next"
    )
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--shards", type=int, default=0, help="of a replica, with FSDP2; 0: DDP")
    parser.add_argument("--pace", type=float, default=0.25, help="seconds of a step")
    parser.add_argument("--spares", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-settle", dest="settle", action="store_false", help="at the end")
    args = parser.parse_args()
    steps = round(60 * args.minutes / args.pace) + 20
    ranks = args.replicas * max(1, args.shards)
    job = Tortured(ranks=ranks, shards=args.shards, steps=steps, pace_s=args.pace)
    options = (*OPTIONS, *([f"--spares={args.spares}"] if args.spares else []))
    bound_s = 3 * 60 * args.minutes + SPARE_S
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        with started(job, Path(folder, "plain"), Run, ("--exact",), bound_s) as plain:
            (plain.out / "go").touch()
            assert plain.finish() == 0, plain.story()
            book = Book(digests_of(plain, ranks))
        print(f"{job.name}: {steps} steps without a loss are known", flush=True)
        began = time.monotonic()
        with started(job, Path(folder, "run"), Tireless, options, bound_s) as run:
            torture(job, run, book, random.Random(args.seed), args)
            (run.out / "go").touch()
            code = run.finish()
            left = run.processes()
            book.compare(run)
            return report(job, run, book, code, time.monotonic() - began, left)


if __name__ == "__main__":
    sys.exit(main())
