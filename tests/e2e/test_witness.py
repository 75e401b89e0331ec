"""Two real launchers and a witness: whichever is lost in silence, the other one goes on."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rendezvous.protocol.exit_codes import ExitCode
from tests.e2e.launching import ROOT, Launcher, free_port
from tests.e2e.nodes import Nodes
from tests.e2e.runs import recoverrun


class Process:
    """`recoverrun witness`, with the keys of the launchers in that directory."""

    def __init__(self, directory: Path, port: int) -> None:
        homes = {f"XDG_{kind}_HOME": str(directory / kind.lower()) for kind in ("CONFIG", "STATE")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "recoverrun", "witness", f"127.0.0.1:{port}"],
            env={**os.environ, **homes, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None, "started with a pipe"
        self.said = self._process.stderr.readline()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        code = self._process.wait(timeout=10)
        assert self._process.stderr is not None, "started with a pipe"
        self._process.stderr.close()
        return code


@pytest.fixture(params=["process", "files"])
def witness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The witness, as launchers are told of it."""
    if request.param == "files":
        directory = tmp_path / "votes"
        directory.mkdir()
        yield f"--witness=file://{directory}"
        return
    port = free_port()
    process = Process(tmp_path, port)
    yield f"--witness=127.0.0.1:{port}"
    assert process.end() == 0
    assert re.search(r"witness [0-9a-f]{16} listens at 127\.0\.0\.1", process.said)


def _pair(launcher: Launcher, witness: str) -> Nodes:
    nodes = Nodes(launcher, 2, extra=(witness,))
    nodes.launches[0].expect_record("roll.decide", "a witness votes too")
    return nodes


@pytest.mark.parametrize("lost", [0, 1])
def test_the_other_one_goes_on_and_the_lost_one_ends_when_it_wakes(
    launcher: Launcher, witness: str, lost: int
) -> None:
    nodes = _pair(launcher, witness)

    nodes.stand_still(lost)

    nodes.stop([1 - lost])


def test_a_proved_death_needs_no_witness_that_answers(launcher: Launcher, tmp_path: Path) -> None:
    port = free_port()
    process = Process(tmp_path, port)
    nodes = _pair(launcher, f"--witness=127.0.0.1:{port}")
    process.end(signal.SIGKILL)

    nodes.launches[0].send(signal.SIGKILL)

    nodes.survivors_meet([1])
    nodes.stop([1])


@pytest.mark.rest
def test_a_witness_that_comes_back_is_taken_in_as_another_one(
    launcher: Launcher, tmp_path: Path
) -> None:
    port = free_port()
    first = Process(tmp_path, port)
    nodes = _pair(launcher, f"--witness=127.0.0.1:{port}")
    first.end(signal.SIGKILL)
    second = Process(tmp_path, port)
    nodes.launches[0].expect_record("roll.decide", "a witness votes too", times=2)

    nodes.launches[0].send(signal.SIGSTOP)
    try:
        nodes.survivors_meet([1])
    finally:
        nodes.launches[0].send(signal.SIGCONT)

    assert nodes.launches[0].finish() == ExitCode.PARTITIONED
    nodes.stop([1])
    assert second.end() == 0


@pytest.mark.rest
def test_a_witness_that_is_not_there_is_missed_and_the_job_runs(launcher: Launcher) -> None:
    nodes = Nodes(launcher, 2, extra=(f"--witness=127.0.0.1:{free_port()}",))

    nodes.launches[1].expect("the witness does not answer: 127.0.0.1")

    nodes.stop([0, 1])


def test_a_place_that_can_be_no_witness_is_refused(launcher: Launcher, tmp_path: Path) -> None:
    for place, words in (
        (f"file://{tmp_path}/none", "is no directory that this user can write to"),
        ("file://relative", "must be HOST:PORT or file:///DIRECTORY"),
        ("host:0", "port 0 means any"),
    ):
        options = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--witness={place}")
        launch = launcher(*options, "--no-python", "true")

        assert launch.finish() == 2
        assert words in launch.output


@pytest.mark.rest
def test_training_outlives_the_silence_of_the_coordinating_one_of_two_nodes(
    launcher: Launcher, tmp_path: Path
) -> None:
    votes, run_dir = tmp_path / "votes", tmp_path / "shared"
    votes.mkdir()
    endpoint = f"127.0.0.1:{free_port()}"
    script = (str(ROOT / "templates/gpt_hsdp.py"), "--shard-size=1", "--steps=60")
    nodes = [
        launcher(
            "--nnodes=2", f"--node-rank={rank}", f"--rdzv-endpoint={endpoint}",
            f"--run-dir={run_dir}", f"--witness=file://{votes}", *script,
            env={"OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]  # fmt: skip
    nodes[0].expect("protected: lost microbatches")

    # With all of its node: what stands still there must not take part in a sum either.
    stopped = [nodes[0].pid, *nodes[0].tree()]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        nodes[1].expect("coordinates this run now")
        nodes[1].expect(r"✓ step \d+ complete")
        assert nodes[1].finish() == 0
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    assert nodes[0].finish() == ExitCode.PARTITIONED
    assert "none of the others is left to ask for a place" in nodes[0].output
    told = recoverrun("postmortem", str(run_dir), "--json")
    found = json.loads(told.stdout)
    assert (found["invariant"]["verdict"], found["invariant"]["exact"]) == ("proved", 60)
    assert found["causes"] == {"node-lost": 1}
