"""Reports of runs in which lost replicas come back, from journals that the coordinator writes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from recoverrun.reports.closing_line import closing_line
from recoverrun.reports.failure_report import failure_report
from recoverrun.reports.postmortem import Postmortem, postmortem, verdict
from recoverrun.reports.postmortem_json import to_json
from recoverrun.reports.postmortem_screen import render
from recoverrun.reports.root_cause import root_cause
from recoverrun.reports.status import Status
from recoverrun.reports.status_lines import plain_lines
from rendezvous.protocol.exit_codes import ExitCode
from tests.unit.returning_job import PAIRS
from tests.unit.returning_run import BEGAN, FAR, NODE, ReturningRun, pid
from tests.unit.run_status import status_of

Begin = Callable[..., ReturningRun]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    runs: list[ReturningRun] = []

    def begun(*args: object, **kwargs: object) -> ReturningRun:
        runs.append(ReturningRun(tmp_path, *args, **kwargs))  # type: ignore[arg-type]
        return runs[-1]

    yield begun
    for run in runs:
        run.close()


def _status(run: ReturningRun) -> Status:
    return status_of(run.log(), BEGAN + run.now)


def _events(status: Status) -> list[str]:
    return [happening.text for happening in status.happenings]


def _page(found: Postmortem) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(render(found, columns=100))
    return capture.get()


def test_the_console_says_in_one_sentence_that_a_replica_is_back(begin: Begin) -> None:
    run = begin()
    run.wait(1.0)
    run.lose(1)
    run.commit()
    run.wait(2.4)
    run.bring_back(1)
    assert not [line for line in run.said if "is back" in line], "nobody has compared anything yet"
    run.wait(0.1)
    run.commit()

    assert run.said[-1] == (
        f"✓ replica 1 (rank 1) is back at step {run.step - 1}, 2.5 s after it was lost"
        " · 3 of 3 replicas"
    )
    assert not [line for line in run.said if "ready" in line or "starts again" in line]


def test_who_is_lost_in_its_first_step_was_not_back(begin: Begin) -> None:
    run = begin()
    run.lose(1)
    run.bring_back(1)
    run.kill(1)
    run.redo()
    run.commit()
    run.wait(2.0)
    run.tick()

    found = postmortem(run.log())

    assert not [line for line in run.said if "is back" in line]
    assert [way.state for way in found.ways] == ["ended", "started"]
    assert found.ways[0].why == f"it was lost again in step {found.ways[0].step}, its first one"
    assert len(found.losses) == 2 and "came back" not in verdict(found)
    assert _status(run).returned == 0


def test_status_shows_who_is_on_the_way_and_how_far(begin: Begin) -> None:
    run = begin(PAIRS)
    run.lose(1)

    replica = _status(run).replicas[1]
    assert (replica.live, replica.coming) == (False, "started again")
    run.start(2, 3)
    replica = _status(run).replicas[1]
    assert replica.pids == (pid(2, 1), pid(3, 1)), "those of the new processes"
    run.ready(2)
    assert _status(run).replicas[1].coming == "started again", "half of it is not ready"
    run.ready(3)
    status = _status(run)
    assert status.replicas[1].coming == "ready to take part again"
    assert "lost: rank 2 SIGKILL; ready to take part again" in "\n".join(plain_lines(status))
    assert (status.phase, status.live) == ("degraded", 2)

    run.hold()

    status = _status(run)
    replica = status.replicas[1]
    assert (replica.live, replica.coming, replica.note) == (True, "", "")
    assert (status.phase, status.live, status.returned) == ("running", 3, 0)
    run.commit()
    status = _status(run)
    assert (status.live, status.returned) == (3, 1)
    assert _events(status)[-1].startswith(
        f"replica 1 (ranks 2, 3) is back at step {run.step - 1}, "
    )
    assert "1 lost, 1 survived, 1 back" in plain_lines(status)[0]


def test_survivors_are_counted_as_the_view_has_them_also_after_a_return(begin: Begin) -> None:
    run = begin()
    run.lose(1)
    run.bring_back(1)
    run.commit()
    run.lose(0)
    run.commit()

    assert "continuing on 2 of 3 replicas" in run.said[-1]
    assert sum("continuing on 2 of 3 replicas" in line for line in run.said) == 2
    assert (_status(run).live, len(_status(run).replicas)) == (2, 3)


def test_a_replica_that_is_lost_twice_has_two_causes_and_came_back_once(begin: Begin) -> None:
    run = begin()
    run.lose(1)
    run.bring_back(1)
    run.commit()
    run.kill(1, error="ValueError: odd row", code=1)
    run.redo()
    run.wait(2.0)
    run.tick()

    found = postmortem(run.log())

    assert [one.cause.root.cause for one in found.losses] == ["sigkill", "exception"]
    assert [one.cause.root.pid for one in found.losses] == [pid(1, 0), pid(1, 1)]
    assert [way.state for way in found.ways] == ["back", "started"]
    assert "2 losses survived, 1 replica came back" in verdict(found)


def test_an_end_of_a_later_life_is_not_taken_for_the_cause_of_an_earlier_loss(
    begin: Begin,
) -> None:
    run = begin(PAIRS)
    run.exit(3, code=-9, ours=True)
    run.kill(2)
    run.tell(run.exited(3))
    run.redo()
    run.bring_back(1)
    run.commit()
    run.kill(3, error="ValueError: odd row", code=1)

    first, second = postmortem(run.log()).losses

    assert (first.cause.root.rank, first.cause.root.cause) == (2, "sigkill")
    assert (second.cause.root.rank, second.cause.root.cause) == (3, "exception")
    assert not first.cause.root.others


def test_a_process_that_ends_on_the_way_is_the_cause_of_no_loss(begin: Begin) -> None:
    run = begin()
    run.lose(1)
    run.start(1)
    run.kill(1, error="ImportError: no such thing", code=1)
    assert run.said[-1] == (
        "! rank 1 exited with code 1: ImportError: no such thing, before it took part again"
    )
    run.wait(2.0)
    run.tick()
    run.bring_back(1)
    run.commit()
    run.lose(1)
    run.commit()

    found = postmortem(run.log())

    assert [one.cause.root.cause for one in found.losses] == ["sigkill", "sigkill"]
    assert [one.cause.root.pid for one in found.losses] == [pid(1, 0), pid(1, 2)]
    assert [way.state for way in found.ways][:2] == ["ended", "back"]
    assert found.ways[0].why == "rank 1: ImportError: no such thing"
    assert [way.number for way in found.ways][:2] == [1, 2]
    page = _page(found)
    assert "did not come back: rank 1: ImportError: no such thing" in page
    assert "rank 1 exited with code 1: ImportError: no such thing, before it took part again" in (
        _events(_status(run))
    )


def test_postmortem_tells_when_each_replica_was_back(begin: Begin) -> None:
    run = begin()
    run.wait(1.0)
    run.lose(1)
    run.commit()
    run.start(1)
    run.wait(2.0)
    run.ready(1)
    run.wait(0.25)
    run.hold(0)
    run.wait(0.125)
    run.hold(2)
    (way,) = postmortem(run.log()).ways
    assert (way.state, way.back) == ("trial", 0.0)
    run.wait(0.5)
    run.commit()

    (way,) = postmortem(run.log()).ways

    assert (way.joined - way.lost, way.back - way.lost) == pytest.approx((2.375, 2.875))
    assert (way.wait_ms, way.hold_ms) == (375.0, 125.0)
    page = _page(postmortem(run.log())).partition("back after")[2]
    line = page.splitlines()[1]
    when, replica, members, ready, step, back, held = (
        line.replace(" s", "s").replace(" ms", "ms").split()
    )
    assert (replica, members, ready, step) == ("1", "r1", "2.0s", str(way.step))
    assert (back, held) == ("2.9s", "125ms") and when.count(":") == 2
    (told,) = to_json(postmortem(run.log()))["returns"]  # type: ignore[misc]
    assert isinstance(told, dict) and (told["state"], told["step"]) == ("back", way.step)
    heads = next(one for one in _page(postmortem(run.log())).splitlines() if "back after" in one)
    page_line = next(one for one in _page(postmortem(run.log())).splitlines() if "2.9 s" in one)
    assert heads.index("back after") == page_line.index("2.9 s"), "columns stand below their heads"


def test_postmortem_tells_what_a_way_back_was_made_of(begin: Begin) -> None:
    run = begin(PAIRS)
    run.lose(1)
    run.wait(0.5)
    run.tick()
    for rank, wait_s in ((2, 1.5), (3, 0.5)):
        run.wait(wait_s)
        run.start(rank)
    run.wait(0.25)
    run.ready(2, 3)
    run.hold(0, 1)
    run.wait(0.125)
    run.hold(4, 5)
    came = (("bytes", 3e6), ("place", 20.0), ("source", 4.0), ("step", 140.0), ("transfer", 8.0))
    slower = (("bytes", 1e6), ("place", 30.0), ("source", 1.0), ("step", 130.0), ("transfer", 4.0))
    run.commit(phases={2: came, 3: slower})
    run.commit()

    (way,) = postmortem(run.log()).ways

    assert dict(way.parts_ms) == pytest.approx({
        "start": 2500.0, "prologue": 250.0, "wait": 0.0, "hold": 125.0, "transfer": 8.0,
        "place": 30.0, "first step": 140.0,
    })  # fmt: skip
    assert (way.parts.size, way.parts.sources) == (4_000_000, (1, 4))
    assert "transfer 8 ms · place 30 ms · first step 140 ms · 4.0 MB from ranks 1, 4" in " ".join(
        _page(postmortem(run.log())).split()
    )
    (told,) = to_json(postmortem(run.log()))["returns"]  # type: ignore[misc]
    assert isinstance(told, dict) and (told["place_ms"], told["sources"]) == (30.0, [1, 4])


def test_a_run_that_ends_first_has_ended_who_was_on_the_way(begin: Begin) -> None:
    run = begin()
    run.lose(1)
    run.start(1)
    run.exit(1, code=-15, ours=True)

    (way,) = postmortem(run.log()).ways

    assert (way.state, way.why) == ("ended", "it was ended before that")
    assert not [line for line in run.said if "before it took part" in line]


def test_the_last_line_counts_losses_and_returns(begin: Begin, tmp_path: Path) -> None:
    run = begin()
    for _ in range(2):
        run.lose(1)
        run.wait(2.0)
        run.tick()
        run.bring_back(1)
        run.commit()

    line = closing_line(run.log(), tmp_path)

    assert "2 losses survived · 2 replicas back" in line


def test_the_timeline_shows_a_replica_that_is_back_as_alive(begin: Begin) -> None:
    run = begin()
    run.wait(1.0)
    run.lose(1)
    run.wait(1.0)
    run.bring_back(1)

    lane = postmortem(run.log()).lanes[1]

    assert [state for _, state in lane.changes] == ["alive", "lost", "alive"]


def test_a_run_that_ends_by_a_later_life_of_a_rank_names_that_one(begin: Begin) -> None:
    run = begin()
    run.lose(1)
    run.bring_back(1)
    run.commit()
    run.kill(0)
    run.redo()
    run.commit()
    run.kill(2)
    run.redo()
    run.commit()
    run.kill(1, error="ValueError: the last one", code=1)

    assert run.machine.stopped is not None
    report = failure_report(run.log(), run.machine.stopped.exit_code, run.run_dir)
    root = root_cause(run.log())

    assert "ValueError: the last one" in report.splitlines()[0]
    assert "1 replica came back" in report
    assert root is not None and (root.rank, root.pid) == (1, pid(1, 1))


def test_a_node_that_does_not_coordinate_tells_of_the_return_too(begin: Begin) -> None:
    run = begin(far=(1, 2))
    run.lose(0)
    run.bring_back(0)
    run.commit()

    both = postmortem(run.log())
    alone = postmortem(run.log(without=NODE))

    assert [(way.slot, way.state) for way in both.ways] == [(0, "back")], "told once"
    assert [(way.slot, way.step, way.state) for way in alone.ways] == [
        (0, both.ways[0].step, "back")
    ]
    assert both.ways[0].hold_ms >= 0 and both.nodes == (NODE, FAR)


def test_the_proof_holds_of_steps_with_growing_and_shrinking_replicas(begin: Begin) -> None:
    run = begin()
    for slot in (1, 0):
        run.lose(slot)
        run.bring_back(slot)
        run.commit()
    for _ in range(20):
        run.commit()

    found = postmortem(run.log()).proof

    assert not found.violations, found
    assert found.exit_code != ExitCode.INVARIANT and found.steps > 10


def test_who_left_as_it_could_not_take_its_place_is_never_the_cause(begin: Begin) -> None:
    run = begin()
    run.lose(1)
    run.bring_back(1)
    run.kill(1, code=ExitCode.AWAY)
    run.wait(0.01)
    run.kill(2)
    run.wait(0.01)
    run.kill(0)

    assert run.machine.stopped is not None
    root = root_cause(run.log())
    assert root is not None and root.rank in (0, 2) and root.cause == "sigkill"
    second = postmortem(run.log()).losses[1].cause.root
    assert second.what == "rank 1 could not take its place again, and left"
