"""The status of a job for somebody who has none of its files: over the network, with its key."""

import signal
import time
from pathlib import Path

import pytest

from recoverrun.config.option_values import C10D_PORT, endpoints
from recoverrun.launcher.network.key_lookup import KeyedEndpoints, find_key
from recoverrun.launcher.network.remote_journals import RemoteJournals
from rendezvous.journal.reader import read_run
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.transport.keys import new_text
from tests.e2e.launching import PATIENCE_S, Launcher
from tests.e2e.nodes import Nodes
from tests.e2e.runs import recoverrun

pytestmark = pytest.mark.e2e

SENTENCE_S = 10.0


def _key(path: Path) -> str:
    path.write_text(new_text())
    path.chmod(0o600)
    return str(path)


def _copied(remote: RemoteJournals, nodes: list[Path]) -> bool:
    """True if the copies hold all that is in these run directories."""
    journals = [path for place in nodes for path in place.glob("events.*.jsonl")]
    copies = [remote.directory / path.name for path in journals]
    return len(journals) == len(nodes) and all(
        copy.exists() and copy.read_bytes() == path.read_bytes()
        for copy, path in zip(copies, journals, strict=True)
    )


def test_the_status_is_told_over_the_network_also_once_the_first_node_is_lost(
    launcher: Launcher, tmp_path: Path
) -> None:
    key, wrong = _key(tmp_path / "key"), _key(tmp_path / "wrong")
    nodes = Nodes(launcher, 3, extra=(f"--key-file={key}",))
    first = nodes.options[1].partition("=")[2]
    asked = ("status", "--rdzv-endpoint", first, "--key-file")

    told = recoverrun(*asked, key)
    assert told.returncode == 0, told.stderr
    for rank, node in enumerate(nodes.launches):
        (pid,) = node.worker_pids().values()
        assert f"replica {rank}: vm.{rank}, 1/1 shards up, pids {pid}" in told.stdout

    for other, words in ((wrong, "rendezvous key mismatch"), ("none", "demands its key")):
        began = time.monotonic()
        refused = recoverrun(*asked, other)
        assert (refused.returncode, refused.stdout) == (ExitCode.NEVER_FORMED, "")
        assert words in refused.stderr and first in refused.stderr
        assert time.monotonic() < began + SENTENCE_S

    copies = tmp_path / "copies"
    copies.mkdir()
    places = endpoints(first, C10D_PORT)
    remote = RemoteJournals(places, find_key(KeyedEndpoints(places, key), {}), copies)
    try:
        remote.fetch()
        assert {path.name for path in copies.iterdir()} == {
            f"events.vm.{rank}.jsonl" for rank in range(3)
        }

        nodes.launches[0].send(signal.SIGKILL)
        nodes.survivors_meet([1, 2])
        leader = nodes.first_with("leader.succeed", [1, 2])
        (came,) = nodes.launches[leader].records("leader.succeed")
        nodes.launches[leader].expect(f"status --rdzv-endpoint {came['place']}")
        until = time.monotonic() + PATIENCE_S
        while not _copied(remote, [nodes.launches[rank].run_dir for rank in (1, 2)]):
            assert time.monotonic() < until
            remote.fetch()

        # At the address that it has printed, or at any node of the job, with the same port.
        for place in (came["place"], first):
            again = recoverrun("status", "--rdzv-endpoint", place, "--key-file", key)
            assert "1 lost" in again.stdout, again.stderr

        assert not remote.over
        for rank in (1, 2):
            nodes.launches[rank].send(signal.SIGINT)
        while not remote.over:
            assert time.monotonic() < until + PATIENCE_S
            remote.fetch()
        assert [nodes.launches[rank].finish() for rank in (1, 2)] == [ExitCode.INTERRUPTED] * 2
        ended = {entry.node for entry in read_run(copies).of("run.end")}
        assert ended == {"vm.1", "vm.2"}  # The launchers have told it as they ended.
    finally:
        remote.close()


@pytest.mark.rest
def test_where_nobody_answers_a_sentence_says_so(launcher: Launcher) -> None:
    began = time.monotonic()
    told = recoverrun(
        "status", "--rdzv-endpoint", f"127.0.0.1:{launcher.port()}", "--key-file", "none"
    )

    assert (told.returncode, told.stdout) == (ExitCode.NEVER_FORMED, "")
    assert "nobody answered at 127.0.0.1" in told.stderr
    assert time.monotonic() < began + SENTENCE_S
