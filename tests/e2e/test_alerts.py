"""The path of the page on metrics, to an alert that fires, with a Prometheus that runs."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recoverrun.config.option_values import Endpoint
from recoverrun.metrics.exposition import Meter, serve
from tests.e2e.launching import free_port
from tests.unit import journals

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.rest,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("prometheus"), reason="there is no prometheus"),
]


def _configuration(port: int) -> str:
    """The one that the page shows, for another port and more often."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    shown = page.partition("> prometheus.yml <<'END'\n")[2].partition("END\n")[0]
    assert "127.0.0.1:9400" in shown and "scrape_interval: 5s" in shown
    scraped = shown.replace("127.0.0.1:9400", f"127.0.0.1:{port}").replace(": 5s", ": 1s")
    return f"global: {{evaluation_interval: 1s}}\n{scraped}"


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """The port that it scrapes, and the address at which it answers."""
    port, own = free_port(), free_port()
    rules = (ROOT / "templates" / "prometheus_alerts.yaml").read_text()
    assert "for: 10m" in rules
    (tmp_path / "prometheus_alerts.yaml").write_text(rules.replace("for: 10m", "for: 1s"))
    (tmp_path / "prometheus.yml").write_text(_configuration(port))
    command = [
        "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{own}",
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
        try:
            yield port, f"http://127.0.0.1:{own}"
        finally:
            process.kill()
            process.wait()


def _asked(address: str, path: str) -> Any:
    """Its answer; None while it starts."""
    try:
        with urllib.request.urlopen(address + path, timeout=30) as answer:
            return json.load(answer)["data"]
    except (urllib.error.URLError, ConnectionError):
        return None


@pytest.mark.parametrize(
    ("run", "name", "summary"),
    [
        (journals.user_exception, "RecoverrunFailed", "The run has ended with exit code 1"),
        (journals.live, "RecoverrunReplicaLost", "1 of its replicas lost for 10 minutes"),
    ],
)
def test_a_run_that_fails_or_has_lost_a_replica_fires_an_alert(
    prometheus: tuple[int, str], tmp_path: Path, run: Callable[[Path], Path], name: str,
    summary: str,
) -> None:  # fmt: skip
    port, address = prometheus
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    end = serve(Endpoint(host="127.0.0.1", port=port), Meter(run(run_dir)).series)
    try:
        until, alerts = time.monotonic() + PATIENCE_S, []
        while not alerts:
            assert time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.2)  # Another program evaluates: there is nothing to wait on.
            found = _asked(address, "/api/v1/alerts")
            firing = [one for one in found["alerts"] if one["state"] == "firing"] if found else []
            alerts = [one for one in firing if one["labels"]["alertname"] == name]
    finally:
        end()

    (alert,) = alerts
    assert alert["annotations"]["summary"].startswith(summary)
