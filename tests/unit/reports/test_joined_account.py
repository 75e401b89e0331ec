"""The journals of several nodes are one account, also where the coordinator's is missing."""

from pathlib import Path

import pytest

from recoverrun.reports.history import history
from recoverrun.reports.proof import prove
from recoverrun.reports.status import Status
from rendezvous.journal.reader import read_run
from rendezvous.journal.writer import journal_path
from rendezvous.protocol.records import Json
from tests.unit.journals import WALL, Story
from tests.unit.run_status import status_of

NODES = ("gpu-01", "gpu-02", "gpu-03")
"""Replica n is on the nth; the first coordinates."""


def _begin(run_dir: Path) -> Story:
    story = Story(run_dir)
    story.start(nodes=3)
    shown: list[Json] = [[0, 1], [2, 3], [4, 5]]
    for node in NODES[1:]:
        story.write("topology.learn", "", node, strategy="fsdp2", replicas=shown, part=True)
        story.write(
            "promise.state", "its own", node, promise="exact-samples", microbatches=4, part=True
        )
    return story


def _part(story: Story, slot: int, step: int, generation: int = 1, **changes: Json) -> None:
    fields: dict[str, Json] = {
        "step": step, "generation": generation, "quota": {str(slot): 4}, "redone": 0,
        "microbatches": 4, "total": 12, "ms": 400.0,
    }  # fmt: skip
    reason = f"step {step}: 4 of 12 microbatches"
    story.write("step.part", reason, NODES[slot], **{**fields, **changes})


def _steps(story: Story, *steps: int) -> None:
    for step in steps:
        _part(story, 1, step)
        story.commit(step)
        _part(story, 2, step)


def _without(run_dir: Path, *nodes: str) -> Path:
    for node in nodes:
        journal_path(run_dir, node).unlink()
    return run_dir


def _status(run_dir: Path) -> Status:
    return status_of(read_run(run_dir), WALL + 5)


@pytest.mark.parametrize(
    ("gone", "note"),
    [
        ((), ""),
        (NODES[1:], ""),
        (NODES[:1], "30 steps: what replica 0 put in is known by the vote's count alone"),
        (NODES[:2], "30 steps: what replicas 0, 1 put in is known by the vote's count alone"),
    ],
)
def test_each_step_is_recounted_from_the_journals_that_are_left(
    tmp_path: Path, gone: tuple[str, ...], note: str
) -> None:
    story = _begin(tmp_path)
    _steps(story, *range(30))
    for node in NODES:
        story.write("run.end", "the end", node, exit_code=0, root_rank=-1)
    log = read_run(_without(story.close(), *gone))

    facts = history(log)
    proof = prove(facts, log)

    assert (proof.verdict, proof.steps, proof.exact, proof.microbatches) == ("proved", 30, 30, 12)
    assert [one.startswith(note) for one in proof.notes] == ([True] if note else [])
    assert facts.promise == "exact-samples"


@pytest.mark.parametrize("codes", [(143, 0, 0), (0, 86, 0), (0, 0, 0)])
def test_a_node_that_has_left_does_not_decide_how_the_job_ended(
    tmp_path: Path, codes: tuple[int, ...]
) -> None:
    story = _begin(tmp_path)
    _steps(story, *range(3))
    for node, code in zip(NODES, codes, strict=True):
        story.write("run.end", "the end", node, exit_code=code, root_rank=-1)

    assert history(read_run(story.close())).exit_code == 0


def test_a_step_without_the_coordinators_record_is_not_proved_where_its_journal_is(
    tmp_path: Path,
) -> None:
    story = _begin(tmp_path)
    _steps(story, 0, 1)
    _part(story, 1, 2)
    _part(story, 2, 2)
    log = read_run(story.close())

    proof = prove(history(log), log)

    assert (proof.verdict, proof.steps, proof.exact) == ("unproved", 3, 2)
    assert "step 2: 4 of 12 microbatches reported by no replica" in proof.unproved


@pytest.mark.parametrize(("code", "verdict"), [(143, "proved"), (0, "unproved")])
@pytest.mark.parametrize(("last", "kept"), [(2, True), (3, False)])
def test_the_step_in_which_a_run_was_ended_is_known_by_its_vote(
    tmp_path: Path, last: int, kept: bool, code: int, verdict: str
) -> None:
    """A signal to all launchers leaves no time to write it down; an earlier step has had it."""
    story = _begin(tmp_path)
    _steps(story, 0, 1)
    _part(story, 2, 2)
    _steps(story, *range(3, last + 1))
    for node in NODES:
        story.write("run.end", "SIGTERM", node, exit_code=code, root_rank=-1)
    log = read_run(story.close())

    proof = prove(history(log), log)

    assert proof.verdict == (verdict if kept else "unproved")
    told = "step 2: 8 microbatches known by the vote's count alone, as the run was ended before"
    assert any(note.startswith(told) for note in proof.notes) == (proof.verdict == "proved")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"total": 11}, "the vote counted 12 for gpu-01 and 11 for gpu-02"),
        ({"done": {"1": [[1, 0], [2, 1]]}}, "gpu-02 put in 2:1 as replica 1, gpu-01 says not"),
    ],
)
@pytest.mark.parametrize("first", ["part", "whole"])
def test_a_part_that_contradicts_the_coordinators_record_is_a_violation(
    tmp_path: Path, changes: dict[str, Json], words: str, first: str
) -> None:
    story = _begin(tmp_path)
    if first == "part":
        _part(story, 1, 0, **changes)
    story.commit(0)
    if first == "whole":
        _part(story, 1, 0, **changes)
    log = read_run(story.close())

    proof = prove(history(log), log)

    assert [(one.invariant, one.what) for one in proof.violations] == [
        ("INV-1", f"step 0: {words}")
    ]


def test_two_nodes_that_claim_one_microbatch_are_a_violation(tmp_path: Path) -> None:
    story = _begin(tmp_path)
    _part(story, 1, 0)
    _part(story, 2, 0, done={"2": [[2, 0], [1, 1]]}, quota={"2": 2}, microbatches=2)
    log = read_run(_without(story.close(), NODES[0]))

    proof = prove(history(log), log)

    assert [one.what for one in proof.violations] == ["step 0: 1:1 is in two accounts or none"]


def test_a_loss_is_one_loss_however_many_nodes_tell_of_it(tmp_path: Path) -> None:
    story = _begin(tmp_path)
    _steps(story, 0)
    for node in NODES[1:]:
        story.write(
            "replica.lost", "as told", node, slot=0, root_rank=0, ranks=[0, 1], generation=2,
            part=True,
        )  # fmt: skip
        story.write(
            "view.change", "", node, generation=2, live=[1, 2], lost_ranks=[0, 1], part=True
        )
    story.lose(0, 0, "rank 0 was killed by SIGKILL")
    log = read_run(story.close())

    facts = history(log)

    assert [(loss.slot, loss.reason) for loss in facts.losses] == [
        (0, "rank 0 was killed by SIGKILL")
    ]
    assert [(view.generation, view.part) for view in facts.views] == [(2, False)]
    assert not prove(facts, log).violations


def test_the_status_of_any_node_shows_how_far_the_run_is(tmp_path: Path) -> None:
    story = _begin(tmp_path)
    _steps(story, *range(7))
    story.close()

    whole = _status(tmp_path)
    alone = _status(_without(tmp_path, *NODES[:2]))

    for found in (whole, alone):
        assert (found.phase, found.last_step, found.steps, found.exact) == ("running", 6, 7, 7)
        assert (found.microbatches, found.total) == (12, 12)
    assert [replica.quota for replica in whole.replicas] == [4, 4, 4]
    assert [replica.quota for replica in alone.replicas] == [-1, -1, 4]


def test_steps_that_another_node_tells_later_are_not_counted_twice(tmp_path: Path) -> None:
    story = _begin(tmp_path)
    story.steps(0, 399)
    story.now = 0.0
    for step in range(400):
        _part(story, 1, step)
    story.close()

    found = _status(tmp_path)

    assert (found.steps, found.exact, found.last_step) == (400, 400, 399)
