"""The exposition is what Prometheus's own parser reads back, from a file and from a port."""

import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from recoverrun.config.option_values import Endpoint
from recoverrun.errors import RecoverrunError
from recoverrun.metrics.exposition import Meter, buckets, serve, text, write
from tests.unit import journals
from tests.unit.journals import Story


def samples(content: str) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (one.name, tuple(one.labels.values())): one.value
        for family in text_string_to_metric_families(content)
        for one in family.samples
    }


def test_the_text_says_what_the_journal_says(tmp_path: Path) -> None:
    """Check 13 of the user experience: a scrape is parsed (alerts: `test_run_series_alerts`)."""
    found = samples(text(Meter(journals.one_loss(tmp_path)).series()).decode())

    assert found["recoverrun_replicas", ("live",)] == 2
    assert found["recoverrun_recovery_seconds_count", ()] == 1
    assert found["recoverrun_recovery_seconds_bucket", ("+Inf",)] == 1
    assert sum(value for (name, _), value in found.items() if name.endswith("losses_total")) == 1


def test_a_scrape_sees_what_was_written_since_the_last(tmp_path: Path) -> None:
    story = journals.two_steps(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    end = serve(Endpoint(host="127.0.0.1", port=port), Meter(tmp_path).series)

    def scrape() -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return samples(answer.read().decode())["recoverrun_run_ended", ()]

    try:
        before = scrape()
        story.end()
        story.close()

        assert (before, scrape()) == (0, 1)
    finally:
        end()


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = Endpoint(host="127.0.0.1", port=taken.getsockname()[1])

        with pytest.raises(RecoverrunError, match="no metrics at 127.0.0.1:"):
            serve(place, Meter(tmp_path).series)


def test_buckets_count_from_below() -> None:
    found = dict(buckets([0.05, 0.2, 0.3, 70.0]))

    assert (found["0.05"], found["0.1"], found["0.25"]) == (1, 1, 2)
    assert (found["60.0"], found["+Inf"]) == (3, 4)


def test_a_file_appears_whole_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "recoverrun.prom"
    write(path, b"old")

    write(path, b"new")

    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [(path.name, b"new")]
    with pytest.raises(RecoverrunError, match="no metrics in"):
        write(tmp_path / "none" / "x.prom", b"")


def test_another_run_in_the_same_directory_begins_with_zero(tmp_path: Path) -> None:
    meter, story = Meter(tmp_path), Story(tmp_path)
    story.start()
    story.commit(0)
    before = samples(text(meter.series()).decode())
    story.wait(5.0)
    story.write("run.start", "", run_id="next", argv=["next.py"], world_size=6, nnodes=1,
                version="0.1.0", inject="")  # fmt: skip
    after = samples(text(meter.series()).decode())
    story.close()

    assert before["recoverrun_steps_total", ()] == 1
    assert after["recoverrun_steps_total", ()] == 0
