"""Journals of small runs for tests, written by the real writer with a clock of their own.

The home layout is 3 replicas of 2 shards on three nodes, 4 microbatches per replica: B = 12.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rendezvous.journal.writer import Journal, journal_path
from rendezvous.protocol.records import Json, Record

WALL = 1_790_000_000.0  # 2026-09-21 14:13:20 UTC
REPLICAS = ((0, 1), (2, 3), (4, 5))
HOME = 4
PATIENCE_S = 30.0
TOTAL = 12

Account = Mapping[int, list[tuple[int, int]]]


@dataclass
class Story:
    """One run directory being written; `now` is in seconds since the run began."""

    run_dir: Path
    now: float = 0.0
    generation: int = 1
    live: list[int] = field(default_factory=lambda: [0, 1, 2])
    node: str = "gpu-01"  # that coordinates
    journals: dict[str, Journal] = field(default_factory=dict)

    def write(self, event: str, reason: str, /, node: str = "", **fields: Json) -> None:
        node = node or self.node
        if node not in self.journals:
            self.journals[node] = Journal(journal_path(self.run_dir, node), node, 0.0)
        record = Record(event, reason, fields)
        journal = self.journals[node]
        journal.append(record, mono=self.now, wall=WALL + self.now)
        assert journal.flush(PATIENCE_S)  # Some tests read what is not closed.

    def wait(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 6)

    def close(self) -> Path:
        for journal in self.journals.values():
            journal.close(PATIENCE_S)
        return self.run_dir

    def start(self, *, nodes: int = 1, inject: str = "") -> None:
        """All workers up, the topology learned, the promise given."""
        names = [f"gpu-0{number + 1}" for number in range(nodes)]
        for name in names:
            self.write(
                "run.start",
                "3 replicas of 2",
                name,
                run_id="tiny-hsdp",
                inject=inject,
                argv=["train.py", "--steps", "40"],
                world_size=6,
                nnodes=nodes,
                version="0.1.0",
            )
            self.write("node.join", f"{name} joined", name=name, nproc=6 // nodes)
        self.wait(0.1)
        for rank in range(6):
            node = names[rank * nodes // 6]
            self.write("worker.spawn", "", node, rank=rank, pid=4100 + rank, incarnation=0)
        self.wait(2.5)
        for rank in range(6):
            self.write("worker.hello", "hooks are installed", rank=rank, torch="2.13.0")
        shown: list[Json] = [list(replica) for replica in REPLICAS]
        self.write("topology.learn", "3 replicas of 2 ranks", strategy="fsdp2", replicas=shown)
        self.write(
            "promise.state",
            "data and random streams can be re-created for any slot",
            promise="exact-samples",
            microbatches=HOME,
        )

    def commit(
        self,
        step: int,
        done: Account | None = None,
        *,
        redone: int = 0,
        ms: float = 400.0,
        **changes: Json,
    ) -> None:
        """One committed step; after a loss without `done` the lost work is shared out evenly."""
        self.wait(ms / 1000)
        shares = done if done is not None else self.shares()
        fields: dict[str, Json] = {
            "step": step,
            "generation": self.generation,
            "quota": {str(slot): len(pairs) for slot, pairs in shares.items()},
            "redone": redone,
            "microbatches": sum(len(pairs) for pairs in shares.values()),
            "total": TOTAL,
            "ms": ms,
        }
        if shares != {slot: [(slot, index) for index in range(HOME)] for slot in range(3)}:
            fields["done"] = {
                str(slot): [list(pair) for pair in pairs] for slot, pairs in shares.items()
            }
        self.write("step.commit", f"step {step}: 12 of 12 microbatches", **{**fields, **changes})

    def shares(self) -> dict[int, list[tuple[int, int]]]:
        """Home slots at home, lost slots dealt out in runs."""
        done = {slot: [(slot, index) for index in range(HOME)] for slot in self.live}
        rest = [(s, i) for s in range(3) if s not in self.live for i in range(HOME)]
        size = -(-len(rest) // len(self.live))
        for place, slot in enumerate(self.live):
            done[slot] += rest[place * size : (place + 1) * size]
        return done

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.commit(step, ms=400.0 + 7 * (step % 5))

    def exit(
        self,
        rank: int,
        *,
        signal: int = 0,
        code: int = 0,
        error: str = "",
        ours: bool = False,
        node: str = "gpu-01",
        age_ms: float = 0.0,
        oom: bool = False,
    ) -> None:
        how = f"was killed by signal {signal}" if signal else error or f"exited with code {code}"
        self.write(
            "worker.exit",
            f"rank {rank} {how}",
            node,
            rank=rank,
            pid=4100 + rank,
            code=-signal if signal else code,
            signal=signal,
            ours=ours,
            error=error,
            age_ms=age_ms,
            **({"oom": True} if oom else {}),
        )

    def kill(self, *ranks: int, node: str = "gpu-01") -> None:
        self.write("worker.kill", "their replica has left", node, ranks=list(ranks))

    def lose(self, slot: int, root: int, reason: str) -> None:
        """The coordinator's two records of a loss."""
        self.write(
            "replica.lost",
            reason,
            slot=slot,
            root_rank=root,
            ranks=list(REPLICAS[slot]),
            generation=self.generation + 1,
        )
        self.live.remove(slot)
        self.generation += 1
        live: list[Json] = list(self.live)
        lost: list[Json] = list(REPLICAS[slot])
        self.write("view.change", reason, generation=self.generation, live=live, lost_ranks=lost)

    def decide(self, step: int) -> None:
        targets: list[Json] = [[s, [list(i) for i in done]] for s, done in self.shares().items()]
        self.write(
            "decision.make",
            f"step {step}: missing microbatches are dealt out",
            step=step,
            generation=self.generation,
            verdict="redo",
            targets=targets,
        )

    def recovered(self, step: int, roots: Mapping[int, int], redone: list[tuple[int, int]]) -> None:
        again: list[Json] = [list(identity) for identity in redone]
        self.write(
            "recovery.done",
            f"step {step} is committed without the lost replicas",
            generation=self.generation,
            slots=list(roots),
            root_ranks=list(roots.values()),
            step=step,
            redone=again,
            total=TOTAL,
            live=len(self.live),
            of=len(REPLICAS),
            detect_ms=0.9,
            agree_ms=3.1,
            rebuild_ms=182.4,
            redo_ms=151.0,
            reduce_ms=41.2,
            vote_ms=6.0,
            total_ms=384.6,
        )

    def end(self, code: int = 0, root: int = -1, reason: str = "all live ranks ended") -> None:
        self.write("run.end", reason, exit_code=code, root_rank=root)


def _kill_replica_1(story: Story, step: int) -> None:
    story.wait(0.2)
    story.exit(3, signal=9)
    story.kill(2)
    story.lose(1, 3, "rank 3 was killed by SIGKILL")
    story.wait(0.02)
    story.exit(2, signal=9, ours=True)
    story.decide(step)


def clean(run_dir: Path) -> Path:
    story = Story(run_dir)
    story.start()
    story.steps(0, 39)
    for rank in range(6):
        story.exit(rank)
    story.end()
    return story.close()


def one_loss(run_dir: Path) -> Path:
    story = Story(run_dir)
    story.start(inject="r3@step:12:backward")
    story.steps(0, 11)
    _kill_replica_1(story, 12)
    story.commit(12, redone=3, ms=785.0)
    story.recovered(12, {1: 3}, [(1, 0), (1, 1), (1, 2)])
    story.steps(13, 39)
    story.end()
    return story.close()


def live(run_dir: Path) -> Path:
    """A run in the middle of its steps, with one replica lost."""
    story = Story(run_dir)
    story.start()
    story.steps(0, 11)
    _kill_replica_1(story, 12)
    story.commit(12, redone=3, ms=785.0)
    story.recovered(12, {1: 3}, [(1, 0), (1, 1), (1, 2)])
    story.steps(13, 20)
    return story.close()


def two_at_once(run_dir: Path) -> Path:
    story = Story(run_dir)
    story.start()
    story.steps(0, 4)
    story.wait(0.1)
    story.exit(3, signal=9)
    story.kill(2)
    story.lose(1, 3, "rank 3 was killed by SIGKILL")
    story.wait(0.001)
    story.exit(4, signal=11)
    story.kill(5)
    story.lose(2, 4, "rank 4 was killed by SIGSEGV")
    story.wait(0.02)
    story.exit(2, signal=9, ours=True)
    story.exit(5, signal=9, ours=True)
    story.decide(5)
    story.commit(5, redone=4, ms=1600.0)
    story.recovered(5, {1: 3, 2: 4}, [(1, 0), (1, 1), (2, 0), (2, 1)])
    story.steps(6, 12)
    story.end()
    return story.close()


def loss_during_recovery(run_dir: Path) -> Path:
    story = Story(run_dir)
    story.start()
    story.steps(0, 4)
    _kill_replica_1(story, 5)
    story.wait(0.15)
    story.exit(5, code=7)
    story.kill(4)
    story.lose(2, 5, "rank 5 exited with code 7")
    story.exit(4, signal=9, ours=True)
    story.decide(5)
    story.commit(5, redone=6, ms=1900.0)
    story.recovered(5, {1: 3, 2: 5}, [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)])
    story.steps(6, 9)
    story.end()
    return story.close()


def node_lost(run_dir: Path) -> Path:
    """Node gpu-02 hosts replica 1; its journal was on the machine that is gone."""
    story = Story(run_dir)
    story.start(nodes=3)
    story.steps(0, 6)
    story.wait(2.1)
    story.write("node.lost", "gpu-02: silent for 2.1 s (limit 2.0 s)", ranks=[2, 3])
    story.lose(1, 2, "node gpu-02 is lost: silent for 2.1 s (limit 2.0 s)")
    story.decide(7)
    story.commit(7, redone=2, ms=800.0)
    story.recovered(7, {1: 2}, [(1, 0), (1, 1)])
    story.steps(8, 20)
    story.end()
    story.close()
    journal_path(run_dir, "gpu-02").unlink()
    return run_dir


def outvoted(run_dir: Path) -> Path:
    """Rank 3 held other parameters than ranks 1 and 5, and left with its replica."""
    story = Story(run_dir)
    story.start()
    story.steps(0, 6)
    reason = "at step 6 the parameters of ranks [[1, 5], [3]] differed: rank 3 against all others"
    story.write("digest.differ", reason, step=6, ranks=[3], outvoted=True)
    story.lose(1, 3, "rank 3: its parameters differ from the others' (step 6)")
    story.decide(7)
    story.commit(7, redone=2, ms=800.0)
    story.recovered(7, {1: 3}, [(1, 0), (1, 1)])
    story.steps(8, 20)
    story.end()
    return story.close()


def user_exception(run_dir: Path) -> Path:
    """The same ValueError on all ranks, and two that only saw a closed connection."""
    story = Story(run_dir)
    story.start()
    story.steps(0, 2)
    for rank in (1, 0, 2, 3):
        story.exit(rank, code=1, error="ValueError: bad shard 8812")
        story.wait(0.001)
    for rank in (4, 5):
        error = "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4312"
        story.exit(rank, code=1, error=error)
    story.end(1, 1, "rank 1 raised ValueError: bad shard 8812")
    return story.close()


def cut_line(run_dir: Path) -> Path:
    """The launcher was killed in the middle of its last line."""
    one_loss(run_dir)
    path = journal_path(run_dir, "gpu-01")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][: len(lines[-2]) // 2])
    return run_dir


def launcher_killed(run_dir: Path) -> Path:
    """Whole lines, then nothing, with a loss that nobody has made good."""
    story = Story(run_dir)
    story.start()
    story.steps(0, 8)
    _kill_replica_1(story, 9)
    return story.close()


def succession(run_dir: Path) -> Path:
    """The coordinator lost replica 1 and then its own machine: gpu-03 finishes the step."""
    story = Story(run_dir)
    story.start(nodes=3)
    story.steps(0, 6)
    story.write("node.lost", why := "gpu-02: its launcher has ended", ranks=[2, 3], name="gpu-02")
    story.lose(1, 2, f"node {why}")
    loss = {"slot": 1, "root_rank": 2, "ranks": [2, 3], "generation": 2, "part": True}
    story.write("replica.lost", "as the coordinator told this node", "gpu-03", **loss)
    story.wait(0.2)
    story.write("leader.succeed", "node gpu-03 coordinates this run now", "gpu-03", tenure=2)
    story.write("replica.lost", f"node {why}", "gpu-03", **loss, inherited=True)
    story.node, story.generation = "gpu-03", 1000
    story.write("node.lost", "gpu-01: its launcher has ended", ranks=[0, 1], name="gpu-01")
    story.lose(0, 0, "node gpu-01 is lost: its launcher has ended")
    story.decide(7)
    story.commit(7, redone=3, ms=900.0)
    story.recovered(7, {0: 0, 1: 2}, [(0, 0), (1, 0), (1, 1)])
    story.steps(8, 20)
    story.end()
    return story.close()


RUNS: Mapping[str, Callable[[Path], Path]] = {
    "clean": clean,
    "one_loss": one_loss,
    "live": live,
    "two_at_once": two_at_once,
    "loss_during_recovery": loss_during_recovery,
    "node_lost": node_lost,
    "succession": succession,
    "outvoted": outvoted,
    "user_exception": user_exception,
    "cut_line": cut_line,
    "launcher_killed": launcher_killed,
}


def two_steps(run_dir: Path) -> Story:
    """A run that has committed two steps, to be written on."""
    story = Story(run_dir)
    story.start()
    story.steps(0, 2)
    return story
