"""The orders of the companion, from the options of the run: parsed once, passed on as JSON."""

import json
from dataclasses import asdict, dataclass
from importlib.machinery import PathFinder
from urllib.parse import urlsplit

from recoverrun.config import option_values
from recoverrun.config.given_options import Options
from recoverrun.config.option_values import Endpoint
from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode

CLASSES = ("loss", "hang", "straggler", "return", "restart", "end")
"""What one can be told of."""

TEXT_MOST = 4096
"""Characters of a command and an address together: a pipe that must not be full tells them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionOrder:
    """All of it; nothing of it is the default."""

    metrics: Endpoint | None = None
    classes: tuple[str, ...] = ()  # of events for which the command runs
    command: str = ""
    notify_url: str = ""
    otlp: str = ""  # where spans go; "env": as variables of OpenTelemetry say

    @property
    def empty(self) -> bool:
        """True if there is nothing to do, so that there is no companion."""
        return self == CompanionOrder()


def order_of(options: Options) -> CompanionOrder:
    """Raises RecoverrunError with exit code 2 for what cannot be meant."""
    metrics = None
    if options.metrics_port:
        metrics = option_values.metrics_place(options.metrics_port, "--metrics-port")
        if PathFinder.find_spec("prometheus_client") is None:
            raise _usage(
                "--metrics-port needs prometheus-client: pip install 'recoverrun[metrics]'"
            )
    classes, command = _hook(options.on_event)
    url, otlp = options.notify_url, options.otlp
    if len(command) + len(url) + len(otlp) > TEXT_MOST:
        raise _usage(f"--on-event, --notify-url, --otlp: longer than {TEXT_MOST} characters")
    if url and not _is_http(url):
        raise _usage("--notify-url must be http://... or https://...")
    if otlp and otlp != "env" and not _is_http(otlp):
        raise _usage("--otlp must be http://..., https://... or env")
    if otlp and PathFinder.find_spec("opentelemetry") is None:
        raise _usage("--otlp needs OpenTelemetry: pip install 'recoverrun[otlp]'")
    return CompanionOrder(
        metrics=metrics, classes=classes, command=command, notify_url=url, otlp=otlp
    )


def _is_http(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _hook(text: str) -> tuple[tuple[str, ...], str]:
    if not text:
        return (), ""
    names, equals, command = text.partition("=")
    classes = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    wrong = [name for name in classes if name not in CLASSES]
    if not equals or not command.strip() or wrong:
        may = ", ".join(CLASSES)
        raise _usage(f"--on-event must be 'CLASS,...=COMMAND', of {may}; not {text!r:.60}")
    return classes, command


def to_json(order: CompanionOrder) -> str:
    return json.dumps(asdict(order))


def from_json(text: str) -> CompanionOrder:
    """The inverse of `to_json`."""
    raw = json.loads(text)
    place = raw["metrics"]
    return CompanionOrder(
        metrics=None if place is None else Endpoint(**place),
        classes=tuple(raw["classes"]),
        command=raw["command"],
        notify_url=raw["notify_url"],
        otlp=raw["otlp"],
    )


def _usage(sentence: str) -> RecoverrunError:
    return RecoverrunError(sentence, ExitCode.USAGE)
