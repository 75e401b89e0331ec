"""Spans arrive at a receiver of OTLP over HTTP as what they are."""

from pathlib import Path

import pytest

from recoverrun.metrics.otlp import at, sender
from recoverrun.metrics.run_spans import RunSpans, trace_id
from recoverrun.reports.status import Watch
from rendezvous.journal.reader import read_run
from tests.unit.eventful_journal import eventful
from tests.unit.otlp_receiver import Receiver, receiving

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_an_address_may_be_that_of_the_receiver_or_of_its_traces(path: str) -> None:
    assert at(f"http://host:4318{path}") == "http://host:4318/v1/traces"


def _send(receiver: Receiver, run_dir: Path, address: str) -> bool:
    book = RunSpans(Watch(run_dir=str(run_dir)))
    found = [*book.add(read_run(eventful(run_dir)).entries), book.whole()]
    return sender(address, book.facts.run_id)(found)


def test_a_trace_arrives_whole(tmp_path: Path) -> None:
    with receiving() as receiver:
        assert _send(receiver, tmp_path, receiver.address)

    spans = receiver.spans
    assert {span.trace_id for span in spans} == {trace_id("tiny-hsdp").to_bytes(16)}
    (root,) = [span for span in spans if not span.parent_span_id]
    assert root.name == "run train.py"
    assert all(span.parent_span_id == root.span_id for span in spans if span is not root)
    (recovery,) = [span for span in spans if span.name == "recovery in step 12"]
    lasted_ms = (recovery.end_time_unix_nano - recovery.start_time_unix_nano) / 1e6
    assert lasted_ms == pytest.approx(384.6)
    attributes = {one.key: one.value for one in recovery.attributes}
    assert attributes["recoverrun.redone"].int_value == 3
    assert receiver.services == {"recoverrun"}


def test_variables_of_opentelemetry_are_honoured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=llm")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "our-training")
        assert _send(receiver, tmp_path, "env")

    assert receiver.services == {"our-training"}
    assert {headers.get("x-team") for headers in receiver.headers} == {"llm"}


def test_a_receiver_that_refuses_is_told(tmp_path: Path) -> None:
    with receiving(status=400) as receiver:
        assert not _send(receiver, tmp_path, receiver.address)
