"""`python -m tests.chaos.snapshots --trials 30 [--only WORDS]`: the only replica is lost, and goes
back to its snapshots.

A worker, the keeper, the launcher or whole nodes are killed, at places that are drawn from the
number of the trial: at a moment of its own from outside, or in the middle of a copy, of parity or
of a restore. The verdict is the weights, which must be those of a run without a loss bit for bit.
`--first 17 --trials 1` tries one again. With root each node is on a host of its own, whose link is
cut before it is killed, so that nobody hears it go, unless the node left could not go on alone.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from tests.chaos.net import Net, net
from tests.e2e.judge import ended_well, nothing_left
from tests.e2e.lost_nodes import LosingNodes, Nodes, nodes_of
from tests.e2e.runs import Run, running
from tests.e2e.snapshots import EVERY, WITHIN_S, GoingBack, Weights, undisturbed, weights_of
from tests.warm.launchers import LAUNCHERS

PACE_S = 0.05
"""A step takes so long at least, for kills at moments of their own to meet all parts of it."""

FIRST_SAFE = 6
"""All wait in this step until there is a snapshot to go back to."""

ON_ONE_NODE = (
    GoingBack(shape="counting", dies=""),
    GoingBack(shape="epochs", layout="fsdp2", ranks=2, dies=""),
    GoingBack(shape="counting", layout="fsdp1", ranks=2, dies=""),
)
PLACES = ("forward", "backward", "between", "snapshot", "restore", "moment")


@dataclass(slots=True)
class Tries:
    """The references of all trials, each made once."""

    folder: Path
    made: dict[str, Weights] = field(default_factory=dict)

    def expected(self, job: GoingBack) -> Weights:
        name = f"{job.layout}-{job.shape}-{job.ranks}"
        if name not in self.made:
            self.made[name] = undisturbed(job, self.folder / name)
        return self.made[name]


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial: how far weights are apart, and how often all went back."""

    apart: float
    back: int


def apart(expected: Weights, found: Weights) -> float:
    """The greatest difference of two weights; infinity where one is missing or not a number."""
    if expected.keys() != found.keys():
        return float("inf")
    worst = 0.0
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            if not torch.equal(found[rank][name], tensor):
                most = float((found[rank][name].double() - tensor.double()).abs().max())
                worst = max(worst, most if most > 0 else float("inf"))
    return worst


# ------------------------------------------------------------------------------- on one node


def lose_worker(draw: random.Random, tries: Tries, folder: Path) -> Tried:
    job = draw.choice(ON_ONE_NODE)
    rank, other = draw.randrange(job.ranks), draw.randrange(job.ranks)
    place, step = draw.choice(PLACES), draw.choice((11, 12, 13, 14, 16, 17, 18, 19))
    inject = f"r{rank}@step:{step}:{place}"
    if place == "snapshot":
        inject = f"r{rank}@step:{draw.choice((10, 15, 20))}:snapshot"
    if place == "restore":
        before = (step - 1) // EVERY * EVERY
        inject = f"r{rank}@step:{step}:forward,r{other}@step:{before}:restore"
    if place == "moment":
        return _at_a_moment(job, tries, folder, draw, rank)
    return _gone_back(job, tries, folder, inject, step if place != "snapshot" else FIRST_SAFE)


def lose_keeper(draw: random.Random, tries: Tries, folder: Path) -> Tried:
    """The keeper first, and then all ranks: what it had is there all the same."""
    job = draw.choice(ON_ONE_NODE)
    if draw.random() < 0.5:
        return _at_a_moment(job, tries, folder, draw, None)
    place, step = draw.choice(("snapshot", "restore")), draw.choice((10, 15))
    died = f"all@step:{step + 3}:{draw.choice(('forward', 'backward'))}"
    inject = f"keeper@step:{step}:{place},{died}"
    return _gone_back(job, tries, folder, inject, step + 3)


def _gone_back(job: GoingBack, tries: Tries, folder: Path, inject: str, waits: int) -> Tried:
    """All wait in this step until the newest snapshot before it is safe."""
    gate, safe = folder / "gate", (waits - 1) // EVERY * EVERY
    with _run(job, folder, inject, gate, waits) as run:
        run.await_record("snapshot.safe", lambda record: int(record["step"]) >= safe)
        gate.touch()
        return _ended(job, tries, run)


def _at_a_moment(
    job: GoingBack, tries: Tries, folder: Path, draw: random.Random, rank: int | None
) -> Tried:
    """Kill this rank, or the keeper and then all ranks, by the clock."""
    gate = folder / "gate"
    with _run(job, folder, "", gate, FIRST_SAFE) as run:
        run.await_record("snapshot.safe")
        gate.touch()
        # No event marks the moment: that is what is tried.
        time.sleep(draw.uniform(0.0, PACE_S * (job.steps - FIRST_SAFE)))
        if rank is not None:
            _kill(_pid(run, "worker.spawn", rank))
        else:
            _kill(_pid(run, "keeper.spawn"))
            time.sleep(draw.uniform(0.0, 0.3))
            for one in range(job.ranks):
                _kill(_pid(run, "worker.spawn", one))
        return _ended(job, tries, run)


@contextmanager
def _run(job: GoingBack, folder: Path, inject: str, gate: Path, waits: int) -> Iterator[Run]:
    arguments = (f"--awaits={waits}@{gate}", f"--pace={PACE_S}")
    options = (f"--snapshot-every={EVERY}",)
    with running(
        job, folder, inject=inject, options=options, arguments=arguments, bound_s=WITHIN_S
    ) as run:
        yield run


def _ended(job: GoingBack, tries: Tries, run: Run) -> Tried:
    ended_well(run)
    nothing_left(run)
    back = len(run.records("snapshot.restored"))
    return Tried(apart(tries.expected(job), weights_of(run)), back)


def _pid(run: Run, event: str, rank: int | None = None) -> int:
    """The newest process of which such a record tells."""
    told = [one for one in run.records(event) if rank is None or one["rank"] == rank]
    return int(told[-1]["pid"])


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # It has ended by itself.


# ------------------------------------------------------------------------------- whole nodes


def lose_launcher(draw: random.Random, tries: Tries, folder: Path) -> Tried:
    """The launcher alone: its node is lost with it."""
    job = LosingNodes(nodes=2, lost=((_step(draw), (draw.randrange(2),)),))
    return _lost(job, tries, folder, draw, whole=False)


def lose_node(draw: random.Random, tries: Tries, folder: Path) -> Tried:
    many = draw.choice((2, 2, 4, 8))
    job = LosingNodes(nodes=many, lost=((_step(draw), (draw.randrange(many),)),))
    if draw.random() < 0.3:
        job = replace(job, inject=f"node1@step:10:{draw.choice(('parity', 'snapshot'))}", lost=())
    return _lost(job, tries, folder, draw)


def lose_two_nodes(draw: random.Random, tries: Tries, folder: Path) -> Tried:
    """At once, of five with two kinds of parity: more than half are left, and may go on."""
    two = tuple(draw.sample(range(5), 2))
    job = LosingNodes(nodes=5, parity=2, lost=((_step(draw), two),))
    return _lost(job, tries, folder, draw)


def _step(draw: random.Random) -> int:
    """In which all wait for the kill, with a safe snapshot: none in which another one is taken."""
    return draw.choice([step for step in range(7, 23) if step % EVERY])


def _lost(
    job: LosingNodes, tries: Tries, folder: Path, draw: random.Random, *, whole: bool = True
) -> Tried:
    expected = tries.expected(job.alike)
    ordered = bool(job.inject)
    if ordered:  # all wait until the kill was seen
        job = replace(job, lost=((18, ()),))
    many = job.nodes + max(1, sum(len(lost) for _, lost in job.lost))
    with _hosts(many) as hosts, nodes_of(job, folder / "nodes", hosts) as nodes:
        for run in nodes.runs:
            run.await_record("worker.spawn")
        first = nodes.hosts()[1]
        nodes.start(many - job.nodes)
        if ordered:
            while not nodes.records("job.restart"):
                nodes.runs[-1].tick()
            first.lost = first.is_over
        else:
            _strike(job, nodes, draw, whole=whole)
        nodes.gate(0).touch()
        for run in nodes.runs:
            if not run.lost:
                code = run.finish()
                assert code == 0, f"exit code {code}{run.story()}"
        return Tried(apart(expected, nodes.weights()), len(nodes.records("snapshot.restored")))


def _strike(job: LosingNodes, nodes: Nodes, draw: random.Random, *, whole: bool) -> None:
    ((step, lost),) = job.lost
    nodes.await_steps(0, step)
    hosts = nodes.hosts()
    for rank in lost:
        if whole:
            hosts[rank].lose()
        else:
            hosts[rank].lost = True
            hosts[rank].kill_launcher()


def _hosts(many: int) -> AbstractContextManager[Net | None]:
    """A host for each node, where that is allowed."""
    return nullcontext() if os.geteuid() else net(many, f"kill{os.getpid()}")


# ------------------------------------------------------------------------------- all of them

Trial = Callable[[random.Random, Tries, Path], Tried]

KINDS: dict[str, Trial] = {
    "a worker": lose_worker,
    "the keeper": lose_keeper,
    "a launcher": lose_launcher,
    "a node of 2, 4 or 8": lose_node,
    "two nodes of 5": lose_two_nodes,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.snapshots", description=__doc__)
    parser.add_argument("--trials", type=int, default=300, help="of each kind")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--only", default="", help="kinds with these words in their names")
    options = parser.parse_args()
    bad = 0
    print(f"{'killed':<22} {'trials':>6} {'bad':>4} {'max |dw|':>9} {'ways back':>9}", flush=True)
    with tempfile.TemporaryDirectory(prefix="kills-") as folder, LAUNCHERS.forked():
        tries = Tries(Path(folder))
        for name, trial in KINDS.items():
            if options.only in name:
                numbers = range(options.first, options.first + options.trials)
                bad += _all_of(name, trial, numbers, tries)
    return 1 if bad else 0


def _all_of(name: str, trial: Trial, numbers: range, tries: Tries) -> int:
    bad, back, worst = 0, 0, 0.0
    for number in numbers:
        with tempfile.TemporaryDirectory(prefix="kill-") as folder:
            try:
                tried = trial(random.Random(f"{name} {number}"), tries, Path(folder) / "run")
            except AssertionError as error:
                bad += 1
                print(f"{name}, trial {number}: {error}", file=sys.stderr, flush=True)
                continue
        back, worst = back + tried.back, max(worst, tried.apart)
        if tried.apart:
            bad += 1
            words = f"weights are {tried.apart:g} apart"
            print(f"{name}, trial {number}: {words}", file=sys.stderr, flush=True)
    print(f"{name:<22} {len(numbers):>6} {bad:>4} {worst:>9g} {back:>9}", flush=True)
    return bad


if __name__ == "__main__":
    raise SystemExit(main())
