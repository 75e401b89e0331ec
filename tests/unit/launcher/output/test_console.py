"""Lines of many workers on one console."""

from pathlib import Path

from recoverrun.launcher.output.console import Console, OutputTail, folded, printable
from recoverrun.launcher.output.console_line import ConsoleLine


def _lines(*texts: str) -> list[ConsoleLine]:
    return [ConsoleLine(rank, f"n:{rank}│ ", text) for rank, text in enumerate(texts)]


def test_what_many_ranks_say_at_once_is_said_once() -> None:
    shown = folded(_lines("hey", "hey", "hey", "hey", "other"))

    assert shown == ["[4 ranks]│ hey  (folded, first n:0)", "n:4│ other"]


def test_a_few_ranks_keep_their_lines_and_so_do_empty_ones() -> None:
    assert folded(_lines("hey", "hey", "hey")) == ["n:0│ hey", "n:1│ hey", "n:2│ hey"]
    assert len(folded(_lines("", "", "", ""))) == 4


def test_one_rank_that_repeats_itself_is_not_many() -> None:
    lines = [ConsoleLine(0, "n:0│ ", "again")] * 5

    assert folded(lines) == ["n:0│ again"] * 5


def test_a_line_cannot_steer_the_terminal() -> None:
    assert printable("\x1b[2J\x1b[31mred\x1b[0m\x07") == "\x1b[31mred\x1b[0m\ufffd\x1b[0m"
    assert printable("10%\r 20%\r 30%\r") == " 30%"
    assert printable("tab\there") == "tab\there"
    assert printable("a\u202eb") == "a\ufffdb"


def test_a_tail_shows_whole_lines_and_at_the_end_the_rest(tmp_path: Path) -> None:
    shown: list[bytes] = []
    console = Console(shown.append, tmp_path / "copies")
    path = tmp_path / "stdout.log"
    console.watch(OutputTail(path=path, rank=0, prefix="p ", label="[r0]:", words=("two",)))

    console.pump()
    path.write_bytes(b"one\ntw")
    console.pump()
    assert shown == [b"p one\n"]
    with path.open("ab") as file:
        file.write(b"o\nrest")
    console.pump(last=True)

    assert shown == [b"p one\n", b"p two\n", b"p rest\n"]
    assert (tmp_path / "copies").read_text() == "[r0]:two\n"
    assert console.idle
