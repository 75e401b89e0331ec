"""Each microsecond of a run is in one bucket, and in the right one: histories made by chance, whose
truth is known because their maker has spent the time.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoverrun.reports.goodput import RECOVERY
from recoverrun.reports.history import History, history
from recoverrun.reports.time_book import SPENT
from rendezvous.journal.reader import Entry, read_run
from rendezvous.protocol.records import Json
from tests.unit import journals

USUAL_US = 120_000  # divisible by all quotas
HOME = 4


@dataclass
class Maker:
    """Writes a history, and keeps its truth. Times are microseconds."""

    replicas: int
    now_us: int = 1_790_000_000_000_000
    truth: Counter[str] = field(default_factory=Counter)
    entries: list[Entry] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    step: int = -1
    generation: int = 1
    pids: dict[int, int] = field(default_factory=dict)
    alive_us: int = 0
    script: int = 0  # the script's own number of a step, less the journal's
    again: int = 0
    reached: int = -1  # the script's own number of the newest step

    def write(self, event: str, **fields: Json) -> None:
        seq, ts = len(self.entries), self.now_us / 1e6
        self.entries.append(
            Entry(ts=ts, mono=0.0, seq=seq, node="n", event=event, reason="", fields=fields)
        )

    def spend(self, bucket: str, us: int) -> None:
        self.truth[bucket] += us
        self.now_us += us
        self.alive_us += us * (len(self.live) or self.replicas)

    def begin(self, bucket: str, us: int, place: int = 0) -> None:
        """All processes start; their first step is done after this and a usual one. `place` is the
        script's own number of it.
        """
        self.live, self.step = list(range(self.replicas)), -1
        self.script = place
        for rank in range(self.replicas):
            self.spawn(rank, 0)
        self.spend(bucket, us)
        layout: list[Json] = [[rank] for rank in range(self.replicas)]
        self.write("topology.learn", strategy="ddp", replicas=layout)
        self.write("promise.state", promise="exact-samples", microbatches=HOME, script_step=place,
                   script_steps=1000)  # fmt: skip
        self.work(told=False)

    def spawn(self, rank: int, incarnation: int) -> None:
        self.pids[rank] = self.pids.get(rank, 100 * rank) + 1
        pid = self.pids[rank]
        self.write("worker.spawn", rank=rank, pid=pid, incarnation=incarnation)

    def end_all(self) -> None:
        for rank in self.live:
            self.write("worker.exit", rank=rank, pid=self.pids[rank], code=1, signal=0, error="")
        self.write("job.restart", attempt=1, restarts=1, root_rank=0)

    def work(self, extra_us: int = 0, *, told: bool = True, home: bool = False) -> None:
        """A usual step, longer where replicas are missing; `extra_us` were spent in it before."""
        most = HOME if home else -(-self.replicas * HOME // len(self.live))
        degraded = USUAL_US * (most - HOME) // HOME
        self.advance(degraded)
        ms = (USUAL_US + degraded + extra_us) / 1000 if told else 0.0
        quota: dict[str, Json] = {str(slot): most for slot in self.live}
        total = self.replicas * HOME
        self.write(
            "step.commit", step=self.step, generation=self.generation, quota=quota, redone=0,
            microbatches=total, total=total, ms=ms,
        )  # fmt: skip

    def advance(self, degraded: int) -> None:
        """The next step is done, which takes so much longer because replicas are missing."""
        self.step += 1
        again = self.step + self.script <= self.reached
        self.reached = max(self.reached, self.step + self.script)
        self.again += again
        self.spend("again" if again else "useful", USUAL_US)
        self.spend("again" if again else "degraded", degraded)

    def long(self, us: int) -> None:
        self.spend("long", us)
        self.work(us)

    def gap(self, us: int) -> None:
        """Nothing on record: the ranks say that the step was shorter."""
        self.spend("unknown", us)
        self.work()

    def slow(self, us: int) -> None:
        """A rank is suspected half of the time, and goes on."""
        self.spend("stall", us)
        lag_s = us / 2e6
        at, self.now_us = self.now_us, self.now_us - us // 2
        self.write(
            "hang.suspect", hang=1, rank=0, step=self.step, phase="", lag_s=lag_s, waiting=[]
        )
        self.now_us = at
        self.write("hang.clear", hang=1, rank=0, lag_s=us / 1e6)
        self.work(us)

    def lose(self, parts: list[int], hung: bool) -> None:
        if len(self.live) < 2:
            return self.work()
        slot = self.live[-1]
        before = -(-self.replicas * HOME // len(self.live))
        degraded = USUAL_US * (before - HOME) // HOME
        self.advance(degraded)
        names = [*RECOVERY]
        self.spend("stall" if hung else "detect", parts[0])
        if hung:
            self.write("hang.condemn", hang=2, rank=slot, step=self.step, phase="",
                       lag_s=parts[0] / 1e6, where="", proof="same")  # fmt: skip
        self.live.remove(slot)
        self.generation += 1
        self.write("worker.exit", rank=slot, pid=self.pids[slot], code=-9, signal=9, error="")
        self.write("replica.lost", slot=slot, root_rank=slot, ranks=[slot],
                   generation=self.generation)  # fmt: skip
        live: list[Json] = [*self.live]
        self.write("view.change", generation=self.generation, live=live, lost_ranks=[slot])
        for name, us in zip(names[1:], parts[1:], strict=True):
            self.spend(name, us)
        quota: dict[str, Json] = {str(s): HOME + 1 for s in self.live}
        total = self.replicas * HOME
        span = USUAL_US + degraded + sum(parts)
        self.write("step.commit", step=self.step, generation=self.generation, quota=quota,
                   redone=1, microbatches=total, total=total, ms=span / 1000)  # fmt: skip
        told: dict[str, Json] = {
            f"{name}_ms": us / 1000 for name, us in zip(names[:-1], parts[:-1], strict=True)
        }
        self.write("recovery.done", generation=self.generation, slots=[slot], root_ranks=[slot],
                   step=self.step, redone=[], total_ms=sum(parts) / 1000, **told)  # fmt: skip
        return None

    def come_back(self, hold_us: int) -> None:
        missing = [slot for slot in range(self.replicas) if slot not in self.live]
        if not missing:
            return self.work()
        self.spawn(missing[0], 1)
        self.spend("rejoin", hold_us)
        self.live = sorted([*self.live, missing[0]])
        self.generation += 1
        live: list[Json] = [*self.live]
        self.write("view.change", generation=self.generation, live=live, lost_ranks=[],
                   joined=[missing[0]], step=self.step + 1)  # fmt: skip
        self.write("replica.return", slot=missing[0], ranks=[missing[0]], step=self.step + 1,
                   wait_ms=1.0, hold_ms=hold_us / 1000)  # fmt: skip
        return self.work(10**9)  # The newcomer says how long its process is there.


SPAN = st.integers(3, 40).map(lambda n: 2 * n * USUAL_US)
EVENTS = st.one_of(
    st.tuples(st.just("work")),
    st.tuples(st.just("long"), SPAN),
    st.tuples(st.just("gap"), SPAN),
    st.tuples(st.just("slow"), SPAN),
    st.tuples(
        st.just("lose"),
        st.lists(st.integers(1, 10**6), min_size=len(RECOVERY), max_size=len(RECOVERY)),
        st.booleans(),
    ),
    st.tuples(st.just("come_back"), SPAN),
    st.tuples(st.just("restart"), SPAN, st.integers(0, 30)),
)


def _made(replicas: int, events: list[tuple[object, ...]], ending_us: int) -> Maker:
    maker = Maker(replicas)
    maker.write("run.start", run_id="r", argv=["t.py"], world_size=replicas, nnodes=1,
                version="1", inject="")  # fmt: skip
    maker.begin("startup", 3_000_000)
    for _ in range(40):  # The usual step is usual.
        maker.work()
    for name, *arguments in events:
        if name == "restart":
            us, back = map(int, arguments)  # type: ignore[call-overload]
            maker.end_all()
            maker.begin("restart", us, place=max(0, maker.reached + 1 - back))
            for _ in range(10):
                maker.work()
        else:
            getattr(maker, str(name))(*arguments)
            # What it takes out of the usual is not made up by the next one.
            maker.work()
    maker.spend("ending", ending_us)
    maker.write("run.end", exit_code=0, root_rank=-1)
    return maker


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 2, 3, 4]), st.lists(EVENTS, max_size=8), st.integers(0, 10**7))
def test_each_microsecond_is_in_the_bucket_for_which_it_was_spent(
    replicas: int, events: list[tuple[object, ...]], ending_us: int
) -> None:
    maker = _made(replicas, events, ending_us)
    facts = History()
    for entry in maker.entries:
        facts.add(entry)

    found = facts.time.goodput()

    assert sum(found.buckets.values()) == found.wall_us == sum(maker.truth.values())
    assert {k: us for k, us in found.buckets.items() if us} == {
        k: us for k, us in maker.truth.items() if us
    }
    assert found.again == maker.again
    assert found.usual_us == USUAL_US
    assert found.alive_us == maker.alive_us
    assert found.allocated_us == replicas * found.wall_us
    assert found.work_us == replicas * maker.truth["useful"]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([
                "run.start", "node.join", "worker.spawn", "step.commit", "step.part", "view.change",
                "recovery.done", "replica.return", "hang.suspect", "hang.clear", "hang.condemn",
                "hang.stick", "worker.exit", "topology.learn", "job.restart", "journal.drop",
            ]),
            st.integers(-(10**6), 10**8),
            st.integers(0, 3),
            st.floats(-10, 1e5),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_whatever_a_journal_holds_the_parts_are_the_whole(
    lines: list[tuple[str, int, int, float]],
) -> None:
    """Records in any order, with any numbers, and clocks that are set back."""
    facts, now_us, latest = History(), 10**15, 10**15
    for seq, (event, passed_us, number, ms) in enumerate(lines):
        now_us += passed_us
        latest = max(latest, now_us) if seq else now_us
        fields: dict[str, Json] = {
            "step": number, "rank": number, "pid": number, "incarnation": 0, "slot": number,
            "live": [0, 1][: number % 3], "quota": {"0": number}, "total": 2 * number, "ms": ms,
            "generation": number, "root_ranks": [number], "redo_ms": ms, "total_ms": 2 * ms,
            "lag_s": ms / 1000, "hold_ms": ms, "replicas": [[0], [1]], "ranks": [number],
        }  # fmt: skip
        facts.add(Entry(ts=now_us / 1e6, mono=0.0, seq=seq, node="n", event=event, reason="",
                        fields=fields))  # fmt: skip

        found = facts.time.goodput()

        assert sum(found.buckets.values()) == found.wall_us
        assert min(found.buckets.values()) >= 0
    if lines:
        assert facts.time.goodput().wall_us == round(1e6 * (facts.latest - facts.began))


@pytest.mark.parametrize("name", journals.RUNS)
def test_the_waterfall_of_a_journal_is_its_duration(tmp_path: Path, name: str) -> None:
    facts = history(read_run(journals.RUNS[name](tmp_path)))

    found = facts.time.goodput()

    assert sum(found.buckets.values()) == found.wall_us
    assert found.wall_us == round(1e6 * (facts.latest - facts.began))
    assert found.steps == len(facts.commits)


def test_what_is_done_again_after_going_back_to_a_snapshot_is_not_useful() -> None:
    maker = Maker(2)
    maker.write("run.start", run_id="r", argv=["t.py"], world_size=2, nnodes=1, version="1",
                inject="")  # fmt: skip
    maker.begin("startup", 3_000_000)
    for _ in range(49):
        maker.work()
    maker.end_all()
    maker.write("snapshot.plan", attempt=1, of=0, step=38, back=12)
    maker.begin("restart", 9_000_000, place=38)
    for _ in range(30):
        maker.work()

    facts = History()
    for entry in maker.entries:
        facts.add(entry)

    found = facts.time.goodput()
    assert found.again == sum(one.again for one in facts.steps_back.found) == 12
    assert found.buckets["again"] == 12 * USUAL_US == maker.truth["again"]
    assert found.buckets["useful"] == maker.truth["useful"]
    assert sum(found.buckets.values()) == found.wall_us


def test_looking_changes_nothing(tmp_path: Path) -> None:
    facts = history(read_run(journals.loss_during_recovery(tmp_path)))

    assert facts.time.goodput() == facts.time.goodput()


def _spending(tmp_path: Path, *, long_ms: float, **spent: float) -> dict[str, int]:
    story = journals.Story(tmp_path)
    story.start()
    for step in range(60):
        story.commit(step, ms=long_ms if step == 40 else 400.0)
    told: dict[str, Json] = {f"{name}_ms": spent.get(name, 0.0) for name in SPENT}
    story.write("time.spend", "", step=59, steps=60, **told)
    story.end()
    found = history(read_run(story.close())).time.goodput()
    assert sum(found.buckets.values()) == found.wall_us
    return {str(bucket): us for bucket, us in found.buckets.items()}


def test_what_a_long_step_spent_is_no_noise_any_more(tmp_path: Path) -> None:
    found = _spending(tmp_path, long_ms=5400.0, alone=5000.0)

    assert found["alone"] == 5_000_000
    assert found["useful"] == 60 * 400_000
    assert "long" not in found


def test_what_each_step_spends_is_not_useful(tmp_path: Path) -> None:
    found = _spending(tmp_path, long_ms=400.0, data=3000.0, imbalance=600.0)

    assert (found["data"], found["imbalance"]) == (3_000_000, 600_000)
    assert found["useful"] == 60 * 400_000 - 3_600_000


def test_no_more_is_spent_than_there_was(tmp_path: Path) -> None:
    found = _spending(tmp_path, long_ms=400.0, data=1e9, alone=1e9)

    assert found["data"] + found.get("alone", 0) <= 60 * 400_000
