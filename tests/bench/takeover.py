"""`python -m tests.bench.takeover`: the coordinator of thousands of launchers is killed.

It and its successor are production job clients in processes of their own; the others are simulated
as in `scale`. As in production, everybody has a connection to the successor before it is needed.
What is measured is the time from the kill until each of the others has something of the new
coordinator.
"""

import argparse
import math
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rendezvous.coordinator.takeover import first_generation
from rendezvous.transport.keys import JobKey, new_text, parse
from tests.bench import lead, machine
from tests.bench.scale import Job
from tests.bench.swarm import STEPS

GOAL_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds since the kill, sorted."""

    configurations: list[float]  # when each launcher knows who coordinates now
    succeeded: float  # when all of them have told what they know
    views: list[float]  # when each has the view of the new coordinator
    decisions: list[float]  # what becomes of the step in flight


@contextmanager
def _job(many: int, key: JobKey | None) -> Iterator[Job]:
    job = Job(many, key, alone=2)
    try:
        yield job
    finally:
        job.end()


def measure(many: int, key: JobKey | None) -> Measured:
    with _job(many, key) as job:
        deputy = job.spawned(lead.main, key, many, job.port)
        name_and_port = job.receive(deputy)
        job.everybody("call", job.port)
        job.expect("formed", 0.0)
        job.times(("Start", 0), many - 2)
        job.somebody("learn", 0)
        job.expect("topology.learn", 0.0)
        job.somebody("second", name_and_port)
        job.count("greeted", None, many - 2)
        for pipe in (job.lead, deputy):
            pipe.send("commit")
        job.somebody("commit", 0)
        _committed(job)
        at = job.replace_lead(deputy)
        job.somebody("dead", 0)
        generation = first_generation(2)
        configurations = job.times(("ConfigurationChange", 2), many - 2)
        _, succeeded_at = job.expect("leader.succeed", at)
        views = job.times(("View", generation), many - 2)
        decisions = job.times(("Decision", generation), many - 2)
        return Measured(
            configurations=[one - at for one in configurations],
            succeeded=succeeded_at - at,
            views=[one - at for one in views],
            decisions=[one - at for one in decisions],
        )


def _committed(job: Job) -> None:
    """Wait until the coordinator has all steps in its books."""
    number, at = job.expect("step.commit", 0.0)
    while number < STEPS[-1]:
        number, at = job.expect("step.commit", math.nextafter(at, math.inf))


def _cell(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return f"{cuts[49]:.2f} / {cuts[98]:.2f} / {max(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.takeover")
    parser.add_argument("--many", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--open", action="store_true", help="without a key, for comparison")
    args = parser.parse_args()
    key = None if args.open else parse(new_text().encode())
    machine.heading("takeover", f"{'no key' if args.open else 'CURVE'}; one worker a launcher")
    rows, met = [], True
    for many in args.many:
        got = measure(many, key)
        met = met and max(got.views) <= GOAL_S
        rows.append([
            str(many), _cell(got.configurations), f"{got.succeeded:.2f}", _cell(got.views),
            f"{max(got.decisions):.2f}", f"{os.getloadavg()[0]:.1f}",
        ])  # fmt: skip
    heads = ["launchers", "configuration", "all told", "view", "decision, last", "load"]
    machine.table(heads, rows)
    print("seconds since the kill: p50 / p99 / max of all launchers")
    machine.goal(f"the last launcher has the new view within {GOAL_S:.0f} s", met)


if __name__ == "__main__":
    main()
