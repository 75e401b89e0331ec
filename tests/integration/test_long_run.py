"""The report of a long run of many replicas is small, and there in seconds."""

import sys
import time
from pathlib import Path

import pytest

from recoverrun.cli.main import main
from rendezvous.journal.lines import Lines
from rendezvous.journal.step_lines import step_reason
from rendezvous.journal.writer import journal_path
from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.records import Json, Record
from tests.unit.journals import WALL

STEPS, REPLICAS, HOME = 50_000, 64, 4
EVERY, AWAY = 500, 50
"""Steps from one loss to the next, and from a loss to the return."""

PAGE_BYTES = 1_000_000
PAGE_S = 5.0
LOADED = 2
"""So many times the processor time do programs take that share its cores with others."""


class LongRun:
    """A journal as launchers write it, with short lines for steps that differ in time alone."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._lines = Lines("gpu-01", 0.0)
        self._now = 0.0
        self._live = set(range(REPLICAS))
        self._generation = 1
        self._starts = dict.fromkeys(self._live, 0)

    def write(self, event: str, reason: str = "", /, **fields: Json) -> None:
        record = Record(event, reason, fields)
        self._file.write(self._lines.line(record, mono=self._now, wall=WALL + self._now).data)

    def begin(self) -> None:
        self.write("run.start", "64 replicas", run_id="long", inject="", argv=["train.py"],
                   world_size=REPLICAS, nnodes=1, version="0.1.0")  # fmt: skip
        self.write("node.join", "gpu-01 joined", name="gpu-01", nproc=REPLICAS)
        for rank in range(REPLICAS):
            self.write("worker.spawn", rank=rank, pid=4100 + rank, incarnation=0)
            self.write("worker.hello", rank=rank, torch="2.13.0")
        replicas: list[Json] = [[rank] for rank in range(REPLICAS)]
        self.write("topology.learn", "64 replicas of 1", strategy="ddp", replicas=replicas)
        self.write("promise.state", promise="exact-samples", microbatches=HOME)

    def step(self, step: int) -> None:
        lost = step // EVERY % REPLICAS
        if step % EVERY == AWAY:
            self._lose(lost)
        if step % EVERY == 2 * AWAY:
            self._come_back(lost, step)
        ms = 400.0 + step % 97
        self._now += ms / 1000
        done = {slot: [[slot, index] for index in range(HOME)] for slot in sorted(self._live)}
        for index in range(HOME if len(done) < REPLICAS else 0):
            done[sorted(done)[index]].append([lost, index])
        quota: dict[str, Json] = {str(slot): len(pairs) for slot, pairs in done.items()}
        more: dict[str, Json] = {str(slot): [*pairs] for slot, pairs in done.items()}
        total = REPLICAS * HOME
        self.write("step.commit", step_reason(step, total, total), step=step, ms=ms,
                   generation=self._generation, quota=quota, redone=0, microbatches=total,
                   total=total, **({"done": more} if len(done) < REPLICAS else {}))  # fmt: skip
        if step % EVERY == AWAY:
            self._recovered(lost, step)

    def _view(self, **fields: Json) -> None:
        self._generation += 1
        live: list[Json] = [*sorted(self._live)]
        self.write("view.change", generation=self._generation, live=live, **fields)

    def _lose(self, slot: int) -> None:
        self.write("worker.exit", f"rank {slot} was killed by signal 9", rank=slot,
                   pid=4100 + slot + 1000 * self._starts[slot], code=-9, signal=9, ours=False,
                   error="", age_ms=0.0)  # fmt: skip
        self.write("replica.lost", f"rank {slot} was killed", slot=slot, root_rank=slot,
                   ranks=[slot], generation=self._generation + 1)  # fmt: skip
        self._live.remove(slot)
        self._view(lost_ranks=[slot])

    def _recovered(self, slot: int, step: int) -> None:
        self.write("recovery.done", generation=self._generation, slots=[slot], root_ranks=[slot],
                   step=step, redone=[], total=REPLICAS * HOME, live=REPLICAS - 1, of=REPLICAS,
                   detect_ms=0.9, agree_ms=3.1, rebuild_ms=182.4, redo_ms=151.0, reduce_ms=41.2,
                   vote_ms=6.0, total_ms=384.6)  # fmt: skip

    def _come_back(self, slot: int, step: int) -> None:
        self._live.add(slot)
        self._starts[slot] += 1
        number = self._starts[slot]
        self.write("replica.start", slot=slot, ranks=[slot], number=number)
        self.write("worker.spawn", rank=slot, pid=4100 + slot + 1000 * number,
                   incarnation=incarnation(0, number))  # fmt: skip
        self.write("replica.ready", slot=slot, ranks=[slot])
        self._view(lost_ranks=[], joined=[slot], step=step)
        self.write("replica.return", slot=slot, ranks=[slot], step=step, wait_ms=50.0, hold_ms=20.0)

    def end(self) -> None:
        self.write("run.end", "all workers ended", exit_code=0, root_rank=-1)
        self._file.close()


@pytest.mark.rest
def test_50_000_steps_of_64_replicas_are_a_small_page_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LongRun(journal_path(tmp_path, "gpu-01"))
    run.begin()
    for step in range(STEPS):
        run.step(step)
    run.end()
    journal = journal_path(tmp_path, "gpu-01").stat().st_size
    assert journal < 100 * STEPS, f"steps are written in full: {journal} bytes"
    page = tmp_path / "run.html"
    words = ["recoverrun", "postmortem", str(tmp_path), "--html", str(page)]
    monkeypatch.setattr(sys, "argv", words)
    began = time.process_time()

    with pytest.raises(SystemExit) as ended:
        main()

    took = time.process_time() - began
    print(f"{took:.1f} s of a processor, {page.stat().st_size:,} bytes")
    assert not ended.value.code
    shown = page.read_text()
    assert "completed 50,000 steps, 100 losses survived" in shown
    assert "50,000/50,000 committed steps had exactly 256 microbatches" in shown
    assert page.stat().st_size < PAGE_BYTES
    assert took < PAGE_S * LOADED
