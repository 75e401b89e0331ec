"""`python -m tests.bench.scale`: what thousands of launchers cost the one that coordinates.

The coordinator is the production job client in a process of its own; the others are simulated, with
real sockets, in two more processes (`swarm`). All share this machine, so every figure includes the
work of the simulated side. Each has one worker, which reports to every view.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import cast

from rendezvous.protocol.heartbeat import heartbeat
from rendezvous.transport.keys import JobKey, new_text, parse
from tests.bench import lead, machine, swarm

PATIENCE_S = 60.0
SWARMS = 2
GOALS_MS = {1000: 100.0, 5000: 350.0}
HEARTBEAT_GOAL = 25.0

_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one job."""

    joined_s: float  # from the first call until the job formed
    started_s: float  # until the last launcher has its place
    heartbeat: float  # share of one core, in percent
    views_ms: list[float]  # from a worker's end to the view at each launcher
    last_ms: list[float]  # the last launcher of each view
    decided_ms: list[float]  # until the last launcher has the decision
    # From the first launcher that hears of a configuration to each of them.
    configuration_ms: list[float]
    storm_s: float
    rss_mib: float


class Job:
    """The processes of one job."""

    def __init__(self, many: int, key: JobKey | None, *, alone: int = 1) -> None:
        """`alone`: how many launchers are processes of their own, with production's code."""
        self._many = many
        self._key = key
        self._processes: list[BaseProcess] = []
        self.lead = self.spawned(lead.main, key, many)
        _, self.port = cast(tuple[str, int], self.receive(self.lead))
        share = (many - alone) // SWARMS
        edges = [alone + share * place for place in range(SWARMS)] + [many]
        self.swarms = [
            self.spawned(swarm.main, key, range(first, last), many)
            for first, last in zip(edges, edges[1:], strict=False)
        ]
        self.told: list[tuple[str, int, float]] = []

    def end(self) -> None:
        for pipe in (self.lead, *self.swarms):
            pipe.send("stop" if pipe is self.lead else ("stop", None))
        for process in self._processes:
            process.join(30)
            if process.is_alive():
                process.kill()

    def everybody(self, what: str, value: object) -> list[object]:
        """Tell all swarms, and take the answer of each."""
        for pipe in self.swarms:
            pipe.send((what, value))
        return [self.receive(pipe) for pipe in self.swarms]

    def somebody(self, what: str, rank: object) -> None:
        for pipe in self.swarms:
            pipe.send((what, rank))

    def replace_lead(self, successor: Connection) -> float:
        """Kill the coordinator; when. From now on it is the successor that tells what happens."""
        self._processes[0].kill()
        at = time.monotonic()
        self.lead = successor
        return at

    def usage(self) -> lead.Usage:
        self.lead.send("usage")
        while not isinstance(answer := self.receive(self.lead), lead.Usage):
            self._keep(answer)
        return answer

    def expect(self, event: str, after: float) -> tuple[int, float]:
        """The coordinator's next record of this name: its number, and when."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            for name, number, at in self.told:
                if name == event and at >= after:
                    return number, at
            if self.lead.poll(0.05):
                self._keep(self.lead.recv())
        raise TimeoutError(f"no {event} within {PATIENCE_S} s; told {self.told[-5:]}")

    def times(self, key: tuple[str, int], many: int) -> list[float]:
        """When each of `many` launchers heard this."""
        self.count("count", key, many)
        answers = self.everybody("times", key)
        return sorted(at for found in answers if isinstance(found, list) for at in found)

    def count(self, what: str, value: object, many: int) -> None:
        """Wait until `many` launchers are so far."""
        until = time.monotonic() + PATIENCE_S
        while (count := _sum(self.everybody(what, value))) < many:
            if time.monotonic() > until:
                raise TimeoutError(f"{count} of {many}: {what} {value}")
            time.sleep(0.05)  # Asking takes time from those who are measured.

    def storm(self) -> float:
        """Seconds until all have called a launcher that none of them had called before."""
        pipe = self.spawned(lead.listen, self._key, self._many - 1)
        port = self.receive(pipe)
        begun = self.everybody("call", port)
        done = self.receive(pipe)
        assert isinstance(done, lead.Usage), f"the listener says {done}"
        return done.at - min(at for at in begun if isinstance(at, float))

    def spawned(self, main: Callable[..., None], *args: object) -> Connection:
        ours, theirs = _spawn.Pipe()
        process = _spawn.Process(target=main, args=(theirs, *args), daemon=True)
        process.start()
        self._processes.append(process)
        return ours

    def _keep(self, answer: object) -> None:
        if isinstance(answer, tuple):
            self.told.append(answer)

    @staticmethod
    def receive(pipe: Connection) -> object:
        if not pipe.poll(PATIENCE_S):
            raise TimeoutError("a process of the benchmark does not answer")
        return pipe.recv()


def _sum(counts: list[object]) -> int:
    return sum(count for count in counts if isinstance(count, int))


@contextmanager
def _job(many: int, key: JobKey | None) -> Iterator[Job]:
    job = Job(many, key)
    try:
        yield job
    finally:
        job.end()


def measure(many: int, key: JobKey | None, events: int, idle_s: float) -> Measured:
    with _job(many, key) as job:
        begun_at = min(at for at in job.everybody("call", job.port) if isinstance(at, float))
        _, formed_at = job.expect("formed", begun_at)
        started = job.times(("Start", 0), many - 1)
        job.somebody("learn", 0)
        job.lead.send("learn")
        job.expect("promise.state", formed_at)
        time.sleep(2 * heartbeat(many).silent_s)  # until nothing but heartbeats is left
        before = job.usage()
        time.sleep(idle_s)
        after = job.usage()
        views, last, decided = [], [], []
        left = many - 1
        for number in range(events):
            rank = many - 1 - number
            left -= 1
            at, seen, decisions = _lose_worker(job, rank, left)
            views += [1000 * (one - at) for one in seen]
            last.append(1000 * (seen[-1] - at))
            decided.append(1000 * (decisions[-1] - at))
        configurations = _lose_launcher(job, many - 1 - events, many - 2)
        rss = job.usage().rss_mib
        return Measured(
            joined_s=formed_at - begun_at,
            started_s=started[-1] - begun_at,
            heartbeat=100 * (after.cpu_s - before.cpu_s) / (after.at - before.at),
            views_ms=views,
            last_ms=last,
            decided_ms=decided,
            configuration_ms=configurations,
            storm_s=job.storm(),
            rss_mib=rss,
        )


def _lose_worker(job: Job, rank: int, left: int) -> tuple[float, list[float], list[float]]:
    """When a worker ended, and when the others had the view and the decision."""
    asked_at = time.monotonic()
    job.somebody("exit", rank)
    said = [pipe for pipe in job.swarms if pipe.poll(1.0)]
    at = said[0].recv()
    generation, _ = job.expect("view.change", asked_at)
    seen = job.times(("View", generation), left)
    return at, seen, job.times(("Decision", generation), left)


def _lose_launcher(job: Job, rank: int, left: int) -> list[float]:
    """Milliseconds from the first launcher that hears of the new configuration to each of them."""
    asked_at = time.monotonic()
    job.somebody("mute", rank)
    number, _ = job.expect("roll.decide", asked_at)
    heard = job.times(("ConfigurationChange", number), left)
    return [1000 * (one - heard[0]) for one in heard]


def _cell(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return f"{cuts[49]:.0f} / {cuts[98]:.0f} / {max(values):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale")
    parser.add_argument("--many", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--events", type=int, default=10, help="lost workers of each job")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of heartbeats")
    parser.add_argument("--open", action="store_true", help="without a key, for comparison")
    args = parser.parse_args()
    key = None if args.open else parse(new_text().encode())
    machine.heading("scale", f"{'no key' if args.open else 'CURVE'}; one worker a launcher")
    rows, found = [], {}
    for many in args.many:
        got = found[many] = measure(many, key, args.events, args.idle)
        load = os.getloadavg()[0]
        rows.append([
            str(many), f"{got.joined_s:.1f} / {got.started_s:.1f}", f"{got.heartbeat:.0f} %",
            _cell(got.views_ms), f"{statistics.median(got.last_ms):.0f}",
            f"{statistics.median(got.decided_ms):.0f}", _cell(got.configuration_ms),
            f"{got.storm_s:.1f}", f"{got.rss_mib:.0f}", f"{load:.1f}",
        ])  # fmt: skip
    machine.table(
        [
            "launchers", "joined / started s", "heartbeats", "view p50 / p99 / max ms",
            "last ms", "decided ms", "configuration p50 / p99 / max ms",
            "all call another s", "RSS MiB", "load",
        ],
        rows,
    )  # fmt: skip
    for many, got in found.items():
        p99 = statistics.quantiles(got.views_ms, n=100, method="inclusive")[98]
        if many in GOALS_MS:
            machine.goal(f"{many}: view p99 {GOALS_MS[many]:.0f} ms", p99 <= GOALS_MS[many])
        machine.goal(f"{many}: heartbeats {HEARTBEAT_GOAL:.0f} %", got.heartbeat <= HEARTBEAT_GOAL)


if __name__ == "__main__":
    main()
