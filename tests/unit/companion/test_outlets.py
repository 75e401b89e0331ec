"""Commands and addresses get events; those that hang or refuse cost nothing but events."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from recoverrun.companion import outlets
from recoverrun.companion.outlets import WAITING_MOST, CommandOutlet, EventOutlet, PostOutlet
from recoverrun.companion.told_events import ToldEvent
from tests.e2e.launching import await_death

LOSS = ToldEvent("loss", "train.py: loss", {"id": "job/n/7", "ranks": [1]})
PATIENCE_S = 60.0


def test_a_command_gets_the_record_and_its_output_is_kept(tmp_path: Path) -> None:
    outlet = CommandOutlet(f"cat > {tmp_path}/got; echo said; echo wrong >&2", tmp_path / "log")

    outlet.deliver(LOSS)

    assert json.loads((tmp_path / "got").read_text()) == {
        "text": "train.py: loss",
        "record": {"id": "job/n/7", "ranks": [1]},
    }
    assert (tmp_path / "log").read_text() == "said\nwrong\n"


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlets, "COMMAND_S", 1.0)
    command = f"sleep 1000 & echo $! > {tmp_path}/pid; cat > /dev/null; wait"

    CommandOutlet(command, tmp_path / "log").deliver(LOSS)

    await_death(int((tmp_path / "pid").read_text()), PATIENCE_S)
    assert "ended after 1 s" in (tmp_path / "log").read_text()


def test_a_command_that_reads_nothing_or_fails_is_no_trouble(tmp_path: Path) -> None:
    outlet = CommandOutlet("exec <&-; exit 3", tmp_path / "log")

    outlet.deliver(ToldEvent("loss", "x" * 1_000_000, {"id": "1"}))


@pytest.fixture
def server() -> Iterator[tuple[str, list[object], list[int]]]:
    """An address, what was posted there, and codes with which it will answer."""
    got: list[object] = []
    codes: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            got.append(json.loads(self.rfile.read(length)))
            self.send_response(codes.pop(0) if codes else 200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}/hook", got, codes
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.mark.parametrize(("codes", "posts"), [([], 1), ([500], 2), ([500, 503, 500], 3)])
def test_an_address_is_tried_three_times(
    server: tuple[str, list[object], list[int]],
    codes: list[int],
    posts: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlets, "AGAIN_S", 0.01)
    url, got, wanted = server
    wanted += codes

    PostOutlet(url, tmp_path / "log").deliver(LOSS)

    assert got == [LOSS.payload()] * posts
    assert (tmp_path / "log").exists() == (posts == 3)
    if posts == 3:
        assert "job/n/7 was not accepted" in (tmp_path / "log").read_text()


def test_events_wait_in_order_and_those_beyond_are_counted() -> None:
    began, go_on = threading.Event(), threading.Event()
    got: list[str] = []

    def slow(told: ToldEvent) -> None:
        began.set()
        go_on.wait(PATIENCE_S)
        got.append(told.text)

    outlet = EventOutlet("slow", slow)
    outlet.put(LOSS)
    assert began.wait(PATIENCE_S)
    for number in range(WAITING_MOST + 3):
        outlet.put(ToldEvent("loss", str(number), {}))
    assert outlet.dropped == 3
    assert not outlet.finish(0.01)

    go_on.set()

    assert outlet.finish(PATIENCE_S)
    assert got == [LOSS.text, *map(str, range(WAITING_MOST))]
