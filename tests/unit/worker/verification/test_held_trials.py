"""A trial holds training up for a while, and goes on beside it."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data._utils import signal_handling

from recoverrun.worker.verification.forked_child import ENDED, ChildFailed, ChildLate
from recoverrun.worker.verification.held_trials import HeldTrials

pytestmark = pytest.mark.usefixtures("streams_put_back")

WITHIN_S = 20.0
SOON_S = 0.3


@pytest.fixture
def gate() -> Iterator[tuple[int, int]]:
    """A pipe: a child that reads it ends once something is written."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def waiting(gate: tuple[int, int]) -> Any:
    """Work that waits at the gate, which a child has no descriptor of: it opens that anew."""
    parent, reader = os.getpid(), gate[0]

    def work() -> dict[str, Any]:
        with open(f"/proc/{parent}/fd/{reader}", "rb", buffering=0) as line:
            return {"read": line.read(1)}

    return work


def test_what_is_soon_over_is_known_at_once() -> None:
    assert HeldTrials(WITHIN_S).run(lambda: {"pid": os.getpid()}, WITHIN_S) != {"pid": os.getpid()}


def test_what_takes_longer_goes_on_beside(gate: tuple[int, int]) -> None:
    trials = HeldTrials(0.0)
    assert trials.run(waiting(gate), WITHIN_S) is None
    assert trials.answer() is None and trials._child is not None
    pid, _ = trials._child

    os.write(gate[1], b"x")

    assert trials.answer(WITHIN_S) == {"read": b"x"}
    with pytest.raises(ChildProcessError):  # its end was waited for
        os.waitpid(pid, os.WNOHANG)


def test_what_takes_too_long_is_ended(gate: tuple[int, int]) -> None:
    trials = HeldTrials(0.0)
    assert trials.run(waiting(gate), SOON_S) is None

    with pytest.raises(ChildLate):
        trials.answer(WITHIN_S)


def test_a_child_that_nobody_asks_any_more_ends_by_itself(gate: tuple[int, int]) -> None:
    trials = HeldTrials(0.0)
    assert trials.run(waiting(gate), SOON_S) is None
    assert trials._child is not None

    _, status = os.waitpid(trials._child[0], 0)

    assert os.WTERMSIG(status) == signal.SIGALRM
    trials._child[1].close()


def test_one_that_ends_without_an_answer_has_failed() -> None:
    with pytest.raises(ChildFailed, match=ENDED):
        HeldTrials(WITHIN_S).run(lambda: os._exit(1), WITHIN_S)


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The handler for the ends of children, put back; torch's is not there."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", False)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("loaders")
def test_the_handler_of_torch_s_loaders_hears_of_their_workers_alone(
    gate: tuple[int, int],
) -> None:
    signal_handling._set_SIGCHLD_handler()
    trials = HeldTrials(0.0)

    assert trials.run(waiting(gate), WITHIN_S) is None

    os.write(gate[1], b"x")
    assert trials.answer(WITHIN_S) == {"read": b"x"}


@pytest.mark.usefixtures("loaders")
@pytest.mark.parametrize("workers", [False, True])
def test_a_script_that_hears_of_ends_of_children_hears_of_none_and_waits(workers: bool) -> None:
    heard: list[int] = []
    signal.signal(signal.SIGCHLD, lambda number, _: heard.append(number))
    if workers:
        signal_handling._set_SIGCHLD_handler()

    # A process that has just been forked has no answer yet.
    assert HeldTrials(0.0).run(lambda: {"done": True}, WITHIN_S) == {"done": True}
    assert not heard
