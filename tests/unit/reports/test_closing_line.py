"""The last line of a run that went well."""

from pathlib import Path

from recoverrun.reports.closing_line import closing_line
from rendezvous.journal.reader import read_run
from rendezvous.protocol.incarnations import incarnation
from tests.unit import journals


def _line(run_dir: Path) -> str:
    return closing_line(read_run(run_dir), Path("runs/train/1"))


def test_a_run_that_survived_losses_says_what_they_cost(tmp_path: Path) -> None:
    assert _line(journals.one_loss(tmp_path)) == (
        "✓ 40 steps · 1 loss survived · 385 ms lost · "
        "postmortem: recoverrun postmortem runs/train/1"
    )


def test_a_recovery_of_two_losses_costs_its_time_once(tmp_path: Path) -> None:
    assert "✓ 13 steps · 2 losses survived · 385 ms lost · " in _line(
        journals.two_at_once(tmp_path)
    )


def test_a_run_that_lost_nothing_says_nothing(tmp_path: Path) -> None:
    assert _line(journals.clean(tmp_path)) == ""


def test_a_run_that_began_again_says_so(tmp_path: Path) -> None:
    story = journals.Story(tmp_path)
    story.start()
    for rank in range(6):
        story.write(
            "worker.exit", "", rank=rank, pid=4100 + rank, code=-15, signal=15, ours=True, error=""
        )
    story.write("job.restart", "node b is lost", attempt=1, restarts=0, of=0, root_rank=2)
    for rank in range(6):
        story.write("worker.spawn", "", rank=rank, pid=5100 + rank, incarnation=incarnation(1, 0))
    story.steps(0, 3)
    story.end()
    story.close()

    assert _line(tmp_path) == (
        "✓ 4 steps · 1 restart · postmortem: recoverrun postmortem runs/train/1"
    )
