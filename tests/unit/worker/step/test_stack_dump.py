"""The place of the script's thread, as the control thread tells it: here the script's is this
test's.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from recoverrun.worker.step import stack_dump
from recoverrun.worker.step.stack_dump import show
from rendezvous.protocol.hang_messages import ShowStack, Stack
from rendezvous.protocol.progress_page import stacks_beside

SHOWN = 3


class Control(threading.Thread):
    """Shows the stack of the main thread some times, and then tells it to go on."""

    def __init__(self, run_dir: Path, hang: int = 1) -> None:
        super().__init__()
        self.stacks: list[Stack] = []
        self.over = False
        self.arrived = threading.Event()
        self._run_dir = run_dir
        self._hang = hang

    def run(self) -> None:
        self.arrived.wait()
        try:
            for look in range(1, SHOWN + 1):
                asked = ShowStack(rank=5, hang=self._hang, look=look)
                self.stacks.append(show(asked, str(self._run_dir / "c5.0"), 7))
        finally:
            self.over = True


Script = Callable[[Control], None]


def goes_round(control: Control) -> None:
    control.arrived.set()
    while not control.over:
        pass


def calls(control: Control) -> None:
    control.arrived.set()
    while not control.over:
        "".join(["a"] * 50_000)


def waits(control: Control) -> None:
    control.arrived.set()
    control.join()


def shown(script: Script, run_dir: Path, hang: int = 1) -> list[Stack]:
    control = Control(run_dir, hang)
    control.start()
    script(control)
    control.join()
    assert len(control.stacks) == SHOWN
    return control.stacks


def test_a_loop_that_calls_nothing_turns_and_one_that_calls_does_not(tmp_path: Path) -> None:
    assert all(stack.turns for stack in shown(goes_round, tmp_path))
    assert not any(stack.turns for stack in shown(calls, tmp_path))


def test_who_waits_has_one_digest_and_does_not_turn(tmp_path: Path) -> None:
    stacks = shown(waits, tmp_path)

    assert len({stack.digest for stack in stacks}) == 1
    assert not any(stack.turns for stack in stacks)


def test_two_places_have_two_digests(tmp_path: Path) -> None:
    assert shown(waits, tmp_path)[0].digest != shown(goes_round, tmp_path)[0].digest


def test_the_frame_is_the_scripts_where_python_waits(tmp_path: Path) -> None:
    (stack, *_) = shown(waits, tmp_path)

    line = waits.__code__.co_firstlineno + 2
    assert stack.frame == f"{os.path.basename(__file__)}:{line} waits"
    assert (stack.rank, stack.hang, stack.look, stack.generation) == (5, 1, 1, 7)


def test_a_process_that_hangs_after_its_script_has_failed_tells_of_both(tmp_path: Path) -> None:
    """A thread or an exit function of the script goes on for ever: the failure is the cause."""
    asked = ShowStack(rank=5, hang=1, look=1)

    stack = show(asked, str(tmp_path / "c5.0"), 7, failure="ValueError: bad\nof several lines")

    assert stack.frame.endswith(", after the script has ended with ValueError: bad")


def test_waiting_in_torchs_communication_is_within(tmp_path: Path) -> None:
    path = os.path.join(os.path.dirname(dist.__file__), "distributed_c10d.py")

    (stack, *_) = shown(_polls(path), tmp_path)

    assert stack.within
    assert stack.frame.startswith(os.path.basename(__file__)), "the script's, not torch's"
    assert not shown(waits, tmp_path)[0].within


def _polls(path: str) -> Script:
    """Waits in code that is in the file `path`, as one of torch's collectives is."""
    space: dict[str, Script] = {}
    code = "def wait(control):\n    control.arrived.set()\n    while not control.over: pass"
    exec(compile(code, path, "exec"), space)
    return lambda control: space["wait"](control)


def test_all_stacks_are_left_for_the_launcher(tmp_path: Path) -> None:
    shown(waits, tmp_path, hang=4)

    text = Path(stacks_beside(str(tmp_path / "c5.0"))).read_text()

    assert f"look {SHOWN}, pid {os.getpid()}" in text
    assert "in waits" in text and "in run" in text, "of the script's thread and of others"


def test_a_place_that_cannot_be_written_to_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert shown(waits, tmp_path / "file")[0].frame


@pytest.mark.parametrize("over", ["range(10**9)", "iter(int, 1)"])
def test_a_loop_over_something_comes_to_an_end(tmp_path: Path, over: str) -> None:
    """The rest cannot be seen from outside, but most of them end."""
    space: dict[str, Script] = {}
    code = f"""
def script(control):
    control.arrived.set()
    for _ in {over}:
        if control.over:
            break
"""
    exec(compile(code, __file__, "exec"), space)

    assert not any(stack.turns for stack in shown(space["script"], tmp_path))


def test_an_output_that_takes_nothing_more_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    gone = os.dup(writer)
    os.close(gone)
    monkeypatch.setattr(stack_dump, "OUTPUTS", (writer, gone))

    unfilled = shown(waits, tmp_path)
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    full = shown(waits, tmp_path)
    os.close(reader)
    unreadable = shown(waits, tmp_path)
    os.close(writer)

    assert [stacks[-1].unread for stacks in (unfilled, full, unreadable)] == [False, True, False]
