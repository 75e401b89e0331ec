"""The screen of stacks fits, and says where the rest is."""

from pathlib import Path

import pytest
from rich.console import Console

from recoverrun.reports.hang_stacks import HangStack
from recoverrun.reports.stack_page import NONE, stack_page
from recoverrun.text import UNICODE


def _stack(rank: int, lines: int = 5) -> HangStack:
    text = "Thread 0x1:\n" + "".join(f'  File "data.py", line {n} in f\n' for n in range(lines))
    return HangStack(hang=2, rank=rank, text=text, path=Path("runs/x/hangs/2/rank.stack"))


def _print(*stacks: HangStack, height: int) -> list[str]:
    console = Console(width=80, height=height, color_system=None)
    with console.capture() as capture:
        console.print(stack_page(stacks, UNICODE, height=height))
    return capture.get().splitlines()


@pytest.mark.parametrize("height", [8, 12, 24, 60])
@pytest.mark.parametrize("many", [1, 2, 9])
def test_it_fits_and_says_what_is_left_out(height: int, many: int) -> None:
    lines = _print(*(_stack(rank) for rank in range(many)), height=height)

    assert len(lines) <= height
    assert any("hang 2, rank 0" in line for line in lines)
    whole = sum("Thread 0x1" in line for line in lines)
    assert whole == many or any(f"and {many - whole} more" in line for line in lines)
    assert "s  back" in lines[-1]


def test_without_stacks_it_says_when_there_will_be_some() -> None:
    assert any(NONE[:40] in line for line in _print(height=24))


def test_no_stack_commands_the_terminal() -> None:
    evil = HangStack(hang=1, rank=1, text="\x1b[2J[bold]x", path=Path("p"))

    text = "\n".join(_print(evil, height=24))

    assert "\x1b[2J" not in text and "[bold]x" in text


def test_a_long_path_leaves_room_for_the_function() -> None:
    path = f"/home/me/{'deep/' * 12}site-packages/data/load.py"
    stack = HangStack(hang=1, rank=1, text=f'  File "{path}", line 9 in fetch', path=Path("p"))

    assert any('File "…/site-packages/data/load.py", line 9 in fetch' in line
               for line in _print(stack, height=24))  # fmt: skip
