"""The launcher's own lines wait for no stream."""

import io
import threading

from recoverrun.launcher.output.speaker import MOST_LINES, Speaker

PATIENCE_S = 30.0


class StalledStream(io.StringIO):
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.go_on.wait(PATIENCE_S), "nobody let it go"
        return super().write(text)


def test_lines_are_printed_in_their_order() -> None:
    stream = io.StringIO()
    speaker = Speaker(stream)

    for number in range(20):
        speaker.say(f"line {number}")
    speaker.close()

    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(20)]


def test_nothing_comes_between_a_line_and_its_end() -> None:
    written: list[str] = []
    stream = io.StringIO()
    stream.write = written.append  # type: ignore[method-assign, assignment]
    speaker = Speaker(stream)

    speaker.say("a line")
    speaker.close()

    assert written == ["a line\n"]


def test_a_stream_that_stalls_holds_up_nobody_and_what_it_lacks_is_counted() -> None:
    stream = StalledStream()
    speaker = Speaker(stream)

    for number in range(MOST_LINES + 3):
        speaker.say(f"line {number}")
    assert stream.reached.wait(PATIENCE_S)
    stream.go_on.set()
    speaker.flush(PATIENCE_S)
    speaker.say("last")
    speaker.close()

    lines = stream.getvalue().splitlines()
    assert len(lines) == MOST_LINES + 2
    assert lines[-2:] == ["(3 lines not shown)", "last"]


def test_a_stream_that_was_closed_is_left_alone() -> None:
    speaker = Speaker(None)

    speaker.say("to nobody")
    speaker.close()


def test_a_stream_that_nobody_reads_any_more_ends_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    speaker = Speaker(stream)

    speaker.say("to nobody")
    speaker.close()
