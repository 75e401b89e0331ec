"""The series of a run are what its journal says, and what dashboards and alerts name exists."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from recoverrun.metrics.run_series import MeteredRun, Series
from recoverrun.reports.history import history
from recoverrun.reports.status import Watch
from rendezvous.journal.reader import read_run
from tests.unit import journals

TEMPLATES = Path(__file__).resolve().parents[3] / "templates"
NOW = journals.WALL + 3600


def of(run_dir: Path) -> dict[str, Series]:
    run = MeteredRun(Watch(run_dir=str(run_dir)))
    run.add(read_run(run_dir).entries)
    series = run.series(NOW)
    named = {one.name.removeprefix("recoverrun_"): one for one in series}
    assert len(named) == len(series)
    return named


def value(series: Series, *labels: str) -> float:
    return dict(series.values)[labels]


def test_a_clean_run(tmp_path: Path) -> None:
    found = of(journals.clean(tmp_path))

    assert value(found["run_ended"]) == 1
    assert value(found["exit_code"]) == 0
    assert value(found["steps_total"]) == value(found["last_step"]) + 1 > 1
    assert value(found["inexact_steps"]) == 0
    assert value(found["replicas"], "live") == 3
    assert value(found["step_microbatches"]) == journals.TOTAL
    assert found["losses_total"].values == []


def test_a_loss_is_counted_by_its_cause_with_what_it_cost(tmp_path: Path) -> None:
    found = of(journals.one_loss(tmp_path))

    assert sum(count for _, count in found["losses_total"].values) == 1
    assert value(found["replicas"], "lost") == 1
    assert value(found["replica_live"], "1") == 0
    ((_, seconds),) = found["recovery_seconds"].values
    parts = sum(value for _, value in found["recovery_part_seconds_total"].values)
    assert 0 < parts <= seconds + 1e-9
    assert value(found["moved_microbatches_total"]) > 0


def test_workers_are_counted_by_node(tmp_path: Path) -> None:
    found = of(journals.node_lost(tmp_path))

    assert value(found["workers_alive"], "gpu-01") == 2
    assert value(found["losses_total"], "node-lost") == 1


def test_what_hangs_or_is_slow_is_counted(tmp_path: Path) -> None:
    story = journals.two_steps(tmp_path)
    story.write("hang.stick", "all have joined", lag_s=9.0)
    story.write(
        "straggler.find", "rank 1 is slow", step=3, rank=1, score=0.2, lag_ms=90, kind="data"
    )
    story.close()

    found = of(tmp_path)

    assert value(found["hangs_total"]) == 1
    assert value(found["stragglers_total"]) == 1


def test_time_is_what_reports_say_of_it(tmp_path: Path) -> None:
    found = of(journals.one_loss(tmp_path))
    goodput = history(read_run(tmp_path)).time.goodput()

    assert sum(seconds for _, seconds in found["time_seconds"].values) == pytest.approx(
        goodput.wall_us / 1e6
    )
    assert value(found["time_seconds"], "redo") == goodput.seconds("redo") > 0
    assert value(found["goodput_ratio"], "wall") == goodput.ratio > 0


STORIES: list[Callable[[Path], Path]] = [
    journals.clean, journals.one_loss, journals.live, journals.two_at_once,
    journals.loss_during_recovery, journals.node_lost, journals.user_exception,
    journals.launcher_killed,
]  # fmt: skip


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_counters_never_fall_and_labels_are_few(
    story: Callable[[Path], Path], tmp_path: Path
) -> None:
    entries = read_run(story(tmp_path)).entries
    run = MeteredRun(Watch(run_dir=str(tmp_path)))
    before: dict[tuple[str, tuple[str, ...]], float] = {}
    for entry in entries:
        run.add([entry])
        for one in run.series(NOW):
            assert set(one.labels) <= {"node", "replica", "class"}
            if one.kind == "counter":
                for labels, number in one.values:
                    assert number >= before.get((one.name, labels), 0.0), one.name
                    before[one.name, labels] = number

    assert before


@pytest.mark.parametrize("name", ["grafana_dashboard.json", "prometheus_alerts.yaml"])
def test_what_dashboards_and_alerts_name_exists(name: str, tmp_path: Path) -> None:
    found = of(journals.one_loss(tmp_path))

    named = set(re.findall(r"recoverrun_(\w+)", (TEMPLATES / name).read_text()))

    assert len(named) > 5
    assert {re.sub("_bucket$", "", one) for one in named} <= found.keys()


def test_there_are_six_alerts() -> None:
    text = (TEMPLATES / "prometheus_alerts.yaml").read_text()

    assert len(re.findall(r"- alert: Recoverrun\w+\n        expr: ", text)) == 6
