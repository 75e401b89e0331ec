"""Spans of a run, sent by OpenTelemetry's own exporter (extra `otlp`): OTLP over HTTP."""

from collections.abc import Callable, Sequence
from typing import Any

from recoverrun.errors import RecoverrunError
from recoverrun.metrics.run_spans import RunSpan, trace_id
from recoverrun.version import __version__
from rendezvous.protocol.exit_codes import ExitCode

LACKING = "there is no OTLP exporter: pip install 'recoverrun[otlp]'"

FROM_ENVIRONMENT = "env"
"""In the place of an address: what `OTEL_EXPORTER_OTLP_*` say."""

PATH = "/v1/traces"


def sender(address: str, run_id: str) -> Callable[[Sequence[RunSpan]], bool]:
    """A function that sends spans of a run there; it returns True if they were taken.

    Resource and headers are those of `OTEL_*`. Raises RecoverrunError without the extra.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ImportError as error:
        raise RecoverrunError(LACKING, ExitCode.USAGE) from error
    exporter = OTLPSpanExporter(None if address == FROM_ENVIRONMENT else at(address))
    own = Resource({"service.name": "recoverrun", "service.version": __version__})
    resource = own.merge(OTELResourceDetector().detect())

    def send(spans: Sequence[RunSpan]) -> bool:
        made = [_made(span, run_id, resource) for span in spans]
        return not made or exporter.export(made) is SpanExportResult.SUCCESS

    return send


def at(address: str) -> str:
    """The place for traces below an address, as `OTEL_EXPORTER_OTLP_ENDPOINT` would mean it."""
    plain = address.rstrip("/")
    return plain if plain.endswith(PATH) else plain + PATH


def _made(span: RunSpan, run_id: str, resource: Any) -> Any:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode

    def context(id: int) -> Any:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(trace_id(run_id), id, is_remote=False, trace_flags=flags)

    whole = RunSpan(key="", name="", begin=0.0, end=0.0, attributes={})
    return ReadableSpan(
        name=span.name,
        context=context(span.id(run_id)),
        parent=context(whole.id(run_id)) if span.key else None,
        resource=resource,
        attributes=dict(span.attributes),
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR if span.failed else StatusCode.OK),
        start_time=round(span.begin * 1e9),
        end_time=round(max(span.begin, span.end) * 1e9),
        instrumentation_scope=InstrumentationScope("recoverrun", __version__),
    )
