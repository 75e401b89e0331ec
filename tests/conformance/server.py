"""A real etcd of one member on loopback, in a directory of its own, gone when the test is over."""

import base64
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from recoverrun.config.option_values import Endpoint
from recoverrun.launcher.network.etcd_client import Etcd
from rendezvous.consensus.etcd_api import Failed, Look
from tests.e2e.launching import free_port

PROGRAM = shutil.which("etcd")
MISSING = "there is no etcd on this machine (Debian: etcd-server)"
PATIENCE_S = 20.0
TRIES = 5
"""Ports that were free a moment ago may be taken."""


class EtcdServer:
    """`port` is where its clients call."""

    def __init__(self, directory: Path, port: int, peer_port: int) -> None:
        assert PROGRAM is not None, MISSING
        self.port = port
        client, peer = (f"http://127.0.0.1:{number}" for number in (port, peer_port))
        self._log = open(directory / "etcd.log", "ab")
        self._process = subprocess.Popen(
            [
                PROGRAM, "--name=one", f"--data-dir={directory / 'data'}",
                f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=one={peer}", "--log-level=error", "--logger=zap",
            ],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(host="127.0.0.1", port=self.port)

    @property
    def url(self) -> str:
        return f"etcd://{self.endpoint}"

    def serves(self) -> bool:
        """Wait until it does; False if it has ended instead."""
        until = time.monotonic() + PATIENCE_S
        etcd = Etcd([self.endpoint], "probe")
        while isinstance(etcd.perform(Look(), ""), Failed):
            assert time.monotonic() < until, "etcd does not answer"
            if self._process.poll() is not None:
                return False
            time.sleep(0.05)  # It tells nobody when it is ready.
        return True

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def call(self, path: str, **fields: object) -> dict[str, Any]:
        """The answer of its gateway."""
        url = f"http://{self.endpoint}/v3/{path}"
        with urlopen(Request(url, json.dumps(fields).encode()), timeout=10) as response:
            content: dict[str, Any] = json.load(response)
        return content

    def demand_users(self) -> None:
        """From now on nobody may do anything without a password."""
        self.call("auth/user/add", name="root", password="secret")
        self.call("auth/role/add", name="root")
        self.call("auth/user/grant", user="root", role="root")
        self.call("auth/enable")

    def keys(self, prefix: str) -> list[str]:
        first, last = prefix.encode(), prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1])
        ends = [base64.b64encode(end).decode() for end in (first, last)]
        found = self.call("kv/range", key=ends[0], range_end=ends[1], keys_only=True)
        return [base64.b64decode(kv["key"]).decode() for kv in found.get("kvs", [])]

    def end(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)
        self._log.close()


@contextmanager
def etcd_server(directory: Path) -> Iterator[EtcdServer]:
    for attempt in range(TRIES):
        folder = directory / f"etcd{attempt}"
        folder.mkdir()
        server = EtcdServer(folder, free_port(), free_port())
        try:
            if server.serves():
                yield server
                return
        finally:
            server.end()
    raise AssertionError(f"no etcd could be started in {TRIES} tries")
