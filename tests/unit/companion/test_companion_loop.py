"""The companion does what it is told on a pipe, tells the last events too, and ends with it."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recoverrun.companion.companion_loop import FINISH_S, follow
from recoverrun.companion.companion_order import CompanionOrder, to_json
from recoverrun.companion.outlets import EventOutlet
from tests.unit.journals import Story
from tests.unit.otlp_receiver import receiving

PID = 77
PATIENCE_S = 60.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, Callable[[], None]]]:
    """The end that the launcher writes to, and a wait for the companion after it is closed."""
    reader, writer = os.pipe()
    thread = threading.Thread(target=follow, args=(PID, reader))
    thread.start()
    closed: list[int] = []

    def ended() -> None:
        if not closed:
            closed.append(writer)
            os.close(writer)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()

    yield writer, ended
    ended()  # Also of a test that was skipped: the process waits for the thread.
    os.close(reader)


def say(writer: int, *words: str) -> None:
    for word in words:
        os.write(writer, word.encode() + b"\0")


def test_what_was_written_until_the_end_is_told(
    pipe: tuple[int, Callable[[], None]], tmp_path: Path
) -> None:
    writer, ended = pipe
    heard = tmp_path / "heard"
    order = CompanionOrder(classes=("loss", "end"), command=f"cat >> {heard}; echo >> {heard}")
    story = Story(tmp_path)
    say(writer, to_json(order), str(tmp_path))

    story.write("run.start", "", run_id="job", argv=["train.py"], world_size=1, nnodes=1,
                version="0.1.0", inject="", pid=PID)  # fmt: skip
    story.write("node.join", "gpu-01 joined", nproc=1)
    story.write("replica.lost", "it is gone", slot=1, root_rank=1, ranks=[1], generation=2)
    story.write("hang.stick", "nobody asked for this", lag_s=9.0)
    story.write("run.end", "done", exit_code=0, root_rank=-1)
    story.close()
    ended()

    lines = heard.read_text().splitlines()
    assert len(lines) == 2
    assert "it is gone" in lines[0] and "ended well" in lines[1]


def test_all_outlets_that_hang_together_take_no_longer_than_one(
    pipe: tuple[int, Callable[[], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, ended = pipe
    passed = [0.0]

    def finish(outlet: object, within_s: float) -> bool:
        passed.append(within_s)
        return False

    monkeypatch.setattr(EventOutlet, "finish", finish)
    monkeypatch.setattr("time.monotonic", lambda: sum(passed))
    order = CompanionOrder(classes=("loss",), command="true", notify_url="http://127.0.0.1:9")
    say(writer, to_json(order), str(tmp_path))
    ended()

    assert len(passed) == 3 and sum(passed) == FINISH_S


@pytest.mark.parametrize("words", [[], [to_json(CompanionOrder())]])
def test_a_launcher_that_ends_before_there_is_a_run_leaves_nothing(
    pipe: tuple[int, Callable[[], None]], words: list[str]
) -> None:
    writer, ended = pipe

    say(writer, *words)

    ended()


def test_a_trace_of_the_run_is_sent_by_the_node_that_coordinates(
    pipe: tuple[int, Callable[[], None]], tmp_path: Path
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    writer, ended = pipe
    with receiving() as receiver:
        say(writer, to_json(CompanionOrder(otlp=receiver.address)), str(tmp_path))
        story = Story(tmp_path)
        story.write("run.start", "", run_id="job", argv=["train.py"], world_size=1, nnodes=1,
                    version="0.1.0", inject="", pid=PID)  # fmt: skip
        story.write("node.join", "gpu-01 joined", nproc=1)
        story.recovered(3, {1: 2}, [])
        story.wait(1.0)
        story.end()
        story.close()
        ended()

    assert [span.name for span in receiver.spans] == ["recovery in step 3", "run train.py"]


def test_a_trace_that_nobody_takes_is_noted_and_holds_nobody_up(
    pipe: tuple[int, Callable[[], None]], tmp_path: Path
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    writer, ended = pipe
    with receiving(status=400) as receiver:
        say(writer, to_json(CompanionOrder(otlp=receiver.address)), str(tmp_path))
        story = Story(tmp_path)
        story.write("run.start", "", run_id="job", argv=["train.py"], world_size=1, nnodes=1,
                    version="0.1.0", inject="", pid=PID)  # fmt: skip
        story.write("node.join", "gpu-01 joined", nproc=1)
        story.end()
        story.close()
        ended()

    assert "the span 'run train.py' was not accepted" in (tmp_path / "events.log").read_text()
