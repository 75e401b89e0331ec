"""Calls to etcd, over the JSON gateway that it has beside its own protocol: nothing but HTTP.

They block, each for a bounded time, so they are made where the launcher's loop does not wait. Of
several addresses the one that answered last is tried first. Names are looked up anew for each call.
"""

import json
from collections.abc import Collection, Sequence
from http.client import HTTPConnection, HTTPException

from recoverrun.config.option_values import Endpoint
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network.blocking_calls import BlockingCalls
from rendezvous.consensus import etcd_api
from rendezvous.consensus.etcd_api import Answer, Call, Failed, Look
from rendezvous.consensus.register_events import Answered
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.records import Record, notice
from rendezvous.transport.station import Station

TIMEOUT_S = 0.8
"""Of each step of a call to one address. The register gives all of it up after 2.5 s."""

PATIENCE_S = 3.0
"""After so long without any answer that is worth a line."""

BYTES_MOST = 4 << 20

REFUSALS = (16, 7, 3)
"""gRPC's codes for a caller that is unknown, for one that may not, and for one that etcd calls ill
formed because it has no user's name."""


class _Refused(Exception):
    """An etcd that works does not want to do this. One clause."""


class _Unable(Exception):
    """An etcd that cannot at this moment. One clause."""


class Etcd:
    """A cluster, by the addresses of its members."""

    def __init__(self, endpoints: Sequence[Endpoint], run_id: str) -> None:
        self._endpoints = list(endpoints)
        self._run_id = run_id
        self._cluster = ""

    def check(self) -> str:
        """The id of the cluster. Raises RecoverrunError if there is none, or it does not let us."""
        found = self.perform(Look(), "")
        if isinstance(found, Failed):
            raise RecoverrunError(f"--etcd: {found.reason}", ExitCode.NEVER_FORMED)
        return self._cluster

    def perform(self, call: Call, job: str) -> Answer:
        """Make the call. Whether it was carried out is not known where it failed."""
        path, body = etcd_api.request(call, etcd_api.prefix_of(self._run_id, job))
        failures = []
        for endpoint in list(self._endpoints):
            try:
                content = _post(endpoint, path, json.dumps(body))
                found = etcd_api.answer(call, content)
                if isinstance(call, Look):
                    self._cluster = etcd_api.cluster(content)
            except _Refused as error:
                return Failed(f"etcd at {endpoint} refuses: {error}")
            except etcd_api.NotEtcd as error:
                failures.append(f"{endpoint} is no etcd of version 3 ({error})")
            except _Unable as error:
                failures.append(f"etcd at {endpoint}: {error}")
            except (OSError, HTTPException) as error:
                failures.append(f"no etcd answers at {endpoint}: {_why(error)}")
            else:
                self._endpoints.remove(endpoint)
                self._endpoints.insert(0, endpoint)
                return found
        return Failed("; ".join(failures))


class EtcdClient:
    """The launcher's way to its etcd, which its loop never waits for."""

    def __init__(self, station: Station, endpoints: Sequence[Endpoint], run_id: str) -> None:
        """Raises RecoverrunError where there is none that lets us."""
        self._etcd = Etcd(endpoints, run_id)
        self.cluster = self._etcd.check()
        self._blocking_calls: BlockingCalls[Answered] = BlockingCalls(station)
        self._failing_since: float | None = None
        self._missed = False

    def ask(self, serial: int, call: Call, job: str) -> None:
        """Have the call made."""
        self._blocking_calls.ask(lambda: Answered(serial, self._etcd.perform(call, job)))

    def read(self, ready: Collection[object], now: float) -> list[Answered | Record]:
        """The answers that have come, if they are what is `ready`, and what a user should know."""
        answers = self._blocking_calls.take(ready)
        notices = [record for answer in answers if (record := self._judge(answer, now))]
        return [*answers, *notices]

    def _judge(self, answered: Answered, now: float) -> Record | None:
        """Say once that it fails for long, and once that it does no more."""
        if not isinstance(answered.answer, Failed):
            missed, self._missed, self._failing_since = self._missed, False, None
            return notice("etcd answers again") if missed else None
        if self._failing_since is None:
            self._failing_since = now
        if self._missed or now - self._failing_since < PATIENCE_S:
            return None
        self._missed = True
        return notice(f"until etcd answers, no loss can be agreed on: {answered.answer.reason}")

    def close(self) -> None:
        self._blocking_calls.close()


def _post(endpoint: Endpoint, path: str, body: str) -> object:
    """The answer of an etcd. Raises OSError, HTTPException, NotEtcd, _Refused, _Unable."""
    connection = HTTPConnection(endpoint.host, endpoint.port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        status, text = response.status, response.read(BYTES_MOST)
    finally:
        connection.close()
    try:
        content = json.loads(text)
    except ValueError:
        raise etcd_api.NotEtcd(f"it answered {status} {text[:40]!r}") from None
    if not isinstance(content, dict):
        raise etcd_api.NotEtcd(f"it answered {status}")
    error = content.get("error")
    if error is None and status == 200:
        return content
    words = str(content.get("message") or error or status)
    if "lease not found" in words and path.startswith("/v3/lease/"):
        return {"result": {}}  # The lease to renew or revoke has lapsed: no error to us.
    if status in (401, 403) or content.get("code") in REFUSALS:
        raise _Refused(words)
    if error is not None:
        raise _Unable(words)
    raise etcd_api.NotEtcd(f"it answered {status}")


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    words = error.strerror if isinstance(error, OSError) else str(error)
    return (words or str(error) or type(error).__name__).lower()
