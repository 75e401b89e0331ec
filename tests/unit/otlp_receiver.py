"""A receiver of OTLP over HTTP on this host, which keeps what it is sent."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    address: str
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def _resources(self) -> list[Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        requests = (ExportTraceServiceRequest.FromString(body) for body in self.bodies)
        return [one for request in requests for one in request.resource_spans]

    @property
    def spans(self) -> list[Any]:
        """All of them, in the order in which they came."""
        scopes = (scope for one in self._resources for scope in one.scope_spans)
        return [span for scope in scopes for span in scope.spans]

    @property
    def services(self) -> set[str]:
        """Names of the services that sent them."""
        attributes = (one for found in self._resources for one in found.resource.attributes)
        return {one.value.string_value for one in attributes if one.key == "service.name"}


@contextmanager
def receiving(status: int = 200) -> Iterator[Receiver]:
    """`status` is the answer to each request at the place for traces."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.bodies.append(body)
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(status if self.path == "/v1/traces" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
