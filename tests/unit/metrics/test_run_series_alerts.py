"""Each alert fires where it should and nowhere else, as Prometheus' own promtool evaluates it."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).resolve().parents[3] / "templates" / "prometheus_alerts.yaml"

pytestmark = pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool")

HEALTHY = {
    'replicas{class="lost"}': "0x120",
    'losses_total{class="sigkill"}': "0x120",
    "last_record_seconds": "0+60x120",
    "run_ended": "0x120",
    "median_step_seconds": "1x120",
    "step_seconds": "1x120",
    "invariant_breaks_total": "0x120",
}
"""Series of a run that goes on, a value each minute."""

TROUBLES = {
    "RecoverrunReplicaLost": {'replicas{class="lost"}': "1x120"},
    "RecoverrunManyLosses": {'losses_total{class="sigkill"}': "0+0.2x120"},
    "RecoverrunSilent": {"last_record_seconds": "60x120"},
    "RecoverrunSlow": {"step_seconds": "2x120"},
    "RecoverrunFailed": {"exit_code": "1x120", "run_ended": "1x120"},
    "RecoverrunInexact": {"invariant_breaks_total": "1x120"},
}


def _alerts() -> dict[str, dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def _evaluated(
    folder: Path, series: dict[str, str], firing: str
) -> subprocess.CompletedProcess[str]:
    """promtool's verdict on: after two hours of these series this alert fires, and no other."""
    tests = [
        {"alertname": name, "eval_time": "2h",
         "exp_alerts": [{"exp_labels": rule["labels"]}] if name == firing else []}
        for name, rule in _alerts().items()
    ]  # fmt: skip
    inputs = [{"series": f"recoverrun_{name}", "values": text} for name, text in series.items()]
    case = {"interval": "1m", "input_series": inputs, "alert_rule_test": tests}
    plan = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case]}
    rules = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]  # They have numbers in them.
        if "sum(" not in rule["expr"]:
            rule["expr"] = f"sum({rule['expr']})"  # Labels of series are no matter here.
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    return subprocess.run(
        ["promtool", "test", "rules", "plan.yaml"], cwd=folder, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def test_no_alert_is_forgotten_here() -> None:
    assert TROUBLES.keys() == _alerts().keys()


def test_of_a_run_that_goes_on_none_fires(tmp_path: Path) -> None:
    ended = _evaluated(tmp_path, HEALTHY, firing="")

    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("name", TROUBLES)
def test_an_alert_fires_where_it_should_and_alone(name: str, tmp_path: Path) -> None:
    ended = _evaluated(tmp_path, {**HEALTHY, **TROUBLES[name]}, firing=name)

    assert ended.returncode == 0, ended.stdout + ended.stderr
