"""The proof from the journal alone, and what contradicts an invariant."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recoverrun.reports.postmortem import Postmortem, postmortem
from recoverrun.reports.proof import Proof
from rendezvous.journal.reader import read_run
from rendezvous.journal.writer import journal_path
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.records import Json
from tests.unit import journals
from tests.unit.journals import Story, two_steps


def _found(run_dir: Path) -> Postmortem:
    return postmortem(read_run(run_dir))


def _proof(run_dir: Path) -> Proof:
    return postmortem(read_run(run_dir)).proof


@pytest.mark.parametrize(
    ("name", "verdict", "steps"),
    [
        ("clean", "proved", 40),
        ("one_loss", "proved", 40),
        ("live", "proved", 21),
        ("two_at_once", "proved", 13),
        ("loss_during_recovery", "proved", 10),
        ("node_lost", "proved", 21),
        ("outvoted", "proved", 21),
        ("user_exception", "proved", 3),
        ("cut_line", "unproved", 39),
        ("launcher_killed", "unproved", 9),
    ],
)
def test_the_proof_of_every_kind_of_run(
    tmp_path: Path, name: str, verdict: str, steps: int
) -> None:
    proof = _proof(journals.RUNS[name](tmp_path))

    assert (proof.verdict, proof.steps, proof.exact) == (verdict, steps, steps)


def test_sums_with_gradients_of_other_parameters_are_told(tmp_path: Path) -> None:
    (note,) = [note for note in _proof(journals.outvoted(tmp_path)).notes if "rank 3" in note]

    assert "held other parameters than the others at step 6 and left" in note


HOME = {slot: [(slot, index) for index in range(4)] for slot in range(3)}


def _missing(story: Story) -> None:
    story.commit(3, {**HOME, 1: HOME[1][:3]}, microbatches=12)


def _twice(story: Story) -> None:
    story.commit(3, {**HOME, 1: [(0, 3), *HOME[1][1:]]})


def _foreign(story: Story) -> None:
    story.commit(3, {**HOME, 1: [(1, 0), (1, 1), (1, 2), (1, 4)]})


def _short_vote(story: Story) -> None:
    story.commit(3, total=11)


def _false_quota(story: Story) -> None:
    story.commit(3, quota={"0": 5, "1": 3, "2": 4})


def _committed_twice(story: Story) -> None:
    story.commit(2)


def _skipped(story: Story) -> None:
    story.commit(4)


def _generation_back(story: Story) -> None:
    story.generation = 5
    story.commit(3)
    story.generation = 4
    story.commit(4)


def _view_back(story: Story) -> None:
    for generation in (3, 2):
        story.write(
            "view.change", "", generation=generation, live=[0, 1, 2], lost_ranks=[]
        )  # fmt: skip


def _loss_forgotten(story: Story) -> None:
    story.lose(1, 3, "rank 3 was killed by SIGKILL")
    story.commit(3)


def _broken(story: Story) -> None:
    story.write("invariant.break", "digests differ", invariant="INV-3")


def _differ(story: Story) -> None:
    story.write("digest.differ", "replica 2 differs", step=2)


def _said_by_nobody(story: Story) -> None:
    story.commit(3, inferred=[[1, 3]])


@pytest.mark.parametrize(
    ("act", "invariant", "words"),
    [
        (_missing, "INV-1", "microbatch 1:3 in no replica's account"),
        (_twice, "INV-1", "0:3 in two accounts"),
        (_foreign, "INV-1", "1:4 of no step"),
        (_short_vote, "INV-1", "counted 11 of 12"),
        (_false_quota, "INV-1", "1:3 in no replica's account; microbatch 0:4 of no step"),
        (_committed_twice, "INV-9", "step 2 was committed twice"),
        (_skipped, "INV-9", "step 3 skipped"),
        (_generation_back, "INV-2", "generation 4"),
        (_view_back, "INV-2", "generation 2 follows generation 3"),
        (_loss_forgotten, "INV-7", "no recovery"),
        (_broken, "INV-3", "digests differ"),
        (_differ, "INV-3", "at step 2"),
        (_said_by_nobody, "INV-1", "although their own lives"),
    ],
)
def test_a_ledger_that_contradicts_an_invariant_is_a_violation(
    tmp_path: Path, act: Callable[[Story], None], invariant: str, words: str
) -> None:
    story = two_steps(tmp_path)

    act(story)

    proof = _proof(story.close())
    assert proof.exit_code == ExitCode.INVARIANT
    assert [one.invariant for one in proof.violations] == [invariant]
    assert words in proof.violations[0].what


def test_steps_that_the_disk_refused_are_missing_and_not_skipped(tmp_path: Path) -> None:
    story = two_steps(tmp_path)
    story.commit(3)
    story.commit(4)
    story.commit(5)
    run_dir = story.close()
    path = journal_path(run_dir, "gpu-01")
    lines = path.read_bytes().splitlines(True)
    del lines[-2]
    path.write_bytes(b"".join(lines))

    proof = _proof(run_dir)

    assert (proof.verdict, proof.exit_code) == ("unproved", 1)
    assert any("step 4 missing from the journal" in doubt for doubt in proof.unproved)


def test_a_shorter_step_of_the_script_is_noted_where_all_replicas_do_the_same(
    tmp_path: Path,
) -> None:
    story = two_steps(tmp_path)
    story.commit(3, quota={"0": 2, "1": 2, "2": 2}, microbatches=6, total=6)
    story.end()

    proof = _proof(story.close())
    assert proof.verdict == "proved"
    assert proof.notes == ("the script's own shorter steps, all replicas alike: 3",)


def test_a_longer_step_of_the_script_is_proved_by_its_identities(tmp_path: Path) -> None:
    """The rest of one epoch is added to the first step of the next; here on fewer replicas."""
    story = two_steps(tmp_path)
    done = {
        0: [(0, index) for index in range(5)] + [(1, 0), (1, 1)],
        2: [(2, index) for index in range(5)] + [(1, 2), (1, 3), (1, 4)],
    }
    story.commit(3, done, total=15)
    story.end()

    proof = _proof(story.close())
    assert not proof.violations
    assert proof.notes == ("the script's own longer steps, all replicas alike: 3",)


def test_a_longer_step_that_lacks_a_microbatch_violates_the_ledger(tmp_path: Path) -> None:
    story = two_steps(tmp_path)
    done = {0: [(0, 0), (0, 1), (1, 0)], 2: [(2, index) for index in range(5)]}
    story.commit(3, done, total=15)
    story.end()

    assert [one.invariant for one in _proof(story.close()).violations] == ["INV-1"]


def test_a_shorter_step_on_fewer_replicas_is_proved_by_its_identities(tmp_path: Path) -> None:
    story = two_steps(tmp_path)
    done = {0: [(0, 0), (0, 1), (1, 0)], 2: [(2, 0), (2, 1), (1, 1)]}
    story.commit(3, done, total=6)
    story.end()

    proof = _proof(story.close())
    assert (proof.verdict, proof.exit_code) == ("proved", 0)
    assert proof.notes == ("the script's own shorter steps, all replicas alike: 3",)


def test_a_step_whose_replicas_do_not_say_its_length_is_left_in_doubt(tmp_path: Path) -> None:
    story = two_steps(tmp_path)
    done = {0: [(0, 0), (1, 0), (1, 1)], 2: [(2, 0), (2, 1), (0, 1)]}
    story.commit(3, done, total=6)
    story.end()

    proof = _proof(story.close())
    assert proof.exit_code == 1
    assert "B = 6 instead of 12" in proof.unproved[0]


def test_a_microbatch_of_a_replica_that_died_before_it_could_say_so_counts(
    tmp_path: Path,
) -> None:
    story = two_steps(tmp_path)
    story.exit(3, signal=9)
    story.lose(1, 3, "rank 3 was killed by SIGKILL")
    story.commit(3, HOME, inferred=[[1, index] for index in range(4)])
    story.recovered(3, {1: 3}, [])
    story.end()

    proof = _proof(story.close())
    assert proof.verdict == "proved"
    assert any("died before confirming" in note for note in proof.notes)


@pytest.mark.parametrize(("step", "verdict"), [(3, "proved"), (5, "violated")])
def test_what_nobody_said_is_believed_of_a_replica_only_up_to_its_loss(
    tmp_path: Path, step: int, verdict: str
) -> None:
    story = two_steps(tmp_path)
    inferred: list[Json] = [[1, 0]]
    for number in range(3, 6):
        if number == 4:
            story.lose(1, 3, "rank 3 was killed by SIGKILL")
            story.recovered(3, {1: 3}, [])
            story.write("replica.return", "replica 1 is back", slot=1, ranks=[2, 3], step=4)
            story.live, story.generation = [0, 1, 2], story.generation + 1
        story.commit(number, **({"inferred": inferred} if number == step else {}))

    assert _proof(story.close()).verdict == verdict


def test_a_restart_of_all_workers_may_count_from_an_older_step(tmp_path: Path) -> None:
    story = two_steps(tmp_path)
    for rank in range(6):
        story.exit(rank, signal=9, ours=rank != 0)
    for rank in range(6):
        number = incarnation(1, 0)
        story.write("worker.spawn", "", rank=rank, pid=5000 + rank, incarnation=number)
    story.generation = 2
    story.steps(0, 4)
    story.end()

    found = _found(story.close())
    assert found.attempts == 2
    assert found.proof.verdict == "proved"


def test_a_journal_without_steps_or_layout_proves_nothing(tmp_path: Path) -> None:
    empty = _proof(tmp_path)
    story = Story(tmp_path)
    story.commit(0)

    assert empty.exit_code == 1
    assert _proof(story.close()).exit_code == 1


@pytest.mark.parametrize(("promise", "verdict"), [("unprotected", "proved"), ("", "violated")])
@pytest.mark.parametrize("done", [None, {0: HOME[0][:3], 1: HOME[1], 2: HOME[2]}])
def test_unequally_many_microbatches_are_the_scripts_own_where_nothing_is_promised_any_more(
    tmp_path: Path, done: dict[int, list[tuple[int, int]]] | None, promise: str, verdict: str
) -> None:
    story = two_steps(tmp_path)
    if promise:
        story.write("promise.state", "ranks differ", promise=promise, microbatches=3)
    fields: dict[str, Json] = {"quota": {"0": 3, "1": 4, "2": 4}, "total": 11, "microbatches": 11}
    story.commit(3, done, **fields)
    story.commit(4)

    proof = _proof(story.close())

    assert proof.verdict == verdict
    if promise:
        assert (proof.exact, proof.microbatches) == (5, 0)
        assert "replicas took unequally many microbatches to step 3" in proof.notes
