"""The journal and the console of a job whose replicas come back, written by the coordinator itself.

Of the launcher there are only the lines of processes that it starts and reaps.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from recoverrun.launcher.output.announcements import Announcer
from rendezvous.coordinator.job_events import Event, Tick
from rendezvous.coordinator.node_book import NodeBook
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.journal.reader import RunLog, read_run
from rendezvous.journal.writer import Journal, journal_path
from rendezvous.protocol.effects import Effect, StopJob, ToRank
from rendezvous.protocol.messages import Committed, Exited, Topology
from rendezvous.protocol.records import Json, Record
from tests.unit.returning_job import THREE, ReturningJob

BEGAN = 1_750_000_000.0
PATIENCE_S = 30.0
Phases = tuple[tuple[str, float], ...]
EMPTY: Mapping[int, Phases] = MappingProxyType({})
NODE, FAR = "gpu-01", "gpu-02"


class ReturningRun(ReturningJob):
    """All ranks are on one node; another one has a journal of what its ranks `far` are told."""

    def __init__(
        self,
        run_dir: Path,
        replicas: tuple[tuple[int, ...], ...] = THREE,
        *,
        policy: RecoveryPolicy | None = None,
        far: Sequence[int] = (),
    ) -> None:
        self.run_dir = run_dir
        self.now = 0.0
        self.said: list[str] = []
        self.announcer = Announcer(self.said.append)
        self.far = frozenset(far)
        self.book = NodeBook(far)
        self.journals = {name: Journal(journal_path(run_dir, name), name, 0.0)
                         for name in ((NODE, FAR) if far else (NODE,))}  # fmt: skip
        world = sum(map(len, replicas))
        for name in self.journals:
            self.write(Record("run.start", "", {
                "run_id": "job", "argv": ["train.py"], "world_size": world, "version": "1",
                "nnodes": len(self.journals), "inject": "", "nodes": [*self.journals],
            }), name)  # fmt: skip
        self.write(Record("node.join", "", {"name": NODE, "nproc": world}))
        for rank in range(world):
            self.spawn(rank, 0)
        super().__init__(replicas, policy=policy)
        topology = Topology(rank=min(far, default=0), generation=1, strategy="", replicas=replicas)
        if far:
            self._far([*self.book.said(topology, 0.0), *self.book.heard(self.machine.view, 0.0)])

    def feed(self, *events: Event) -> list[Effect]:
        effects: list[Effect] = []
        for event in events:
            message = getattr(event, "message", None)
            if self.far and getattr(message, "rank", -1) in self.far:
                self._far(self.book.said(message, self.now))
            for effect in self.machine.step(event, self.now):
                effects.append(effect)
                if isinstance(effect, Record):
                    self.write(effect)
                elif isinstance(effect, ToRank) and effect.rank in self.far:
                    self._far(self.book.heard(effect.message, self.now))
                elif isinstance(effect, StopJob):
                    stop = effect.stop
                    fields: dict[str, Json] = {
                        "exit_code": stop.exit_code, "root_rank": stop.root_rank,
                    }  # fmt: skip
                    self.write(Record("run.end", stop.reason, fields))
        return effects

    def commit(self, *, phases: Mapping[int, Phases] = EMPTY) -> list[Effect]:
        """All members commit a step; the first of them computes what lost ones would have."""
        lost = [slot for slot in range(len(self.replicas)) if not self._lives(slot)]
        first = next(slot for slot in range(len(self.replicas)) if self._lives(slot))
        effects: list[Effect] = []
        for rank in self.live:
            slot = self.slot(rank)
            done = ((slot, 0), *((home, 0) for home in (lost if slot == first else ())))
            effects += self.tell(Committed(
                rank=rank, generation=self.generation, step=self.step, done=tuple(sorted(done)),
                redone=(), total=len(self.replicas), digest="", phases=phases.get(rank, ()),
            ))  # fmt: skip
        self.step += 1
        return effects

    def _lives(self, slot: int) -> bool:
        return set(self.replicas[slot]) <= set(self.live)

    def tick(self) -> list[Effect]:
        return self.feed(Tick())

    def _far(self, records: Sequence[Record]) -> None:
        for record in records:
            self.write(record, FAR)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.announcer.tick(self.now)

    def kill(self, *ranks: int, error: str = "", code: int = -9) -> list[Effect]:
        for rank in ranks:
            self.exit(rank, code=code, error=error)
        return super().kill(*ranks, error=error, code=code)

    def exited(self, rank: int) -> Exited:
        """That the newest process of `rank` was ended by our hand."""
        return Exited(
            rank=rank, incarnation=self.births[rank], node=NODE, code=-9, ours=True, error="",
            detected_s=0.001,
        )  # fmt: skip

    def start(self, *ranks: int) -> list[Effect]:
        for rank in ranks:
            self.spawn(rank, self.births[rank] + 1)
        return super().start(*ranks)

    def spawn(self, rank: int, birth: int) -> None:
        fields: dict[str, Json] = {"rank": rank, "pid": pid(rank, birth), "incarnation": birth}
        self.write(Record("worker.spawn", f"rank {rank} starts", fields), self._home(rank))

    def exit(self, rank: int, *, code: int, error: str = "", ours: bool = False) -> None:
        birth = self.births[rank]
        how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
        fields: dict[str, Json] = {
            "rank": rank, "pid": pid(rank, birth), "code": code, "signal": max(0, -code),
            "ours": ours, "error": error, "incarnation": birth, "detect_ms": 1.0, "age_ms": 1.0,
        }  # fmt: skip
        words = f": {error}" if error else ""
        self.write(Record("worker.exit", f"rank {rank} {how}{words}", fields), self._home(rank))

    def _home(self, rank: int) -> str:
        return FAR if rank in self.far else NODE

    def write(self, record: Record, node: str = NODE) -> None:
        self.journals[node].append(record, mono=self.now, wall=BEGAN + self.now)
        if node == NODE:
            self.announcer.hear(record, 100.0 + self.now)

    def log(self, *, without: str = "") -> RunLog:
        """The journal so far; `without` that of one node."""
        for name, journal in self.journals.items():
            assert journal.flush(PATIENCE_S)
            if name == without:
                journal_path(self.run_dir, name).rename(self.run_dir / "lost")
        return read_run(self.run_dir)

    def close(self) -> None:
        for journal in self.journals.values():
            journal.close(PATIENCE_S)


def pid(rank: int, birth: int) -> int:
    return 1000 + 100 * birth + rank
