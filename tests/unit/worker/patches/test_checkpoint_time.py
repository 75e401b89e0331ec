"""Saving and loading is counted as checkpoints, whoever calls it, and once."""

from pathlib import Path
from types import ModuleType

from recoverrun.worker.patches.checkpoint_time import CALLS, timed, watches
from rendezvous.protocol.progress_page import ProgressWriter


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_the_time_of_a_call_is_that_of_a_checkpoint_also_of_one_within_another(
    tmp_path: Path,
) -> None:
    clock = Clock()
    progress = ProgressWriter(str(tmp_path / "page"), clock)

    def inner() -> str:
        clock.now_ns += 3_000_000
        return "saved"

    save_inner = timed(progress)(inner)

    def outer() -> str:
        clock.now_ns += 2_000_000
        said: str = save_inner()
        clock.now_ns += 1_000_000
        return said

    clock.now_ns += 7_000_000
    assert timed(progress)(outer)() == "saved"
    clock.now_ns += 5_000_000
    progress.goes_on()

    assert progress.spent_ms() == {"data": 0.0, "alone": 0.0, "checkpoint": 6.0}
    assert progress.spent_ms()["checkpoint"] == 0.0


def test_functions_of_a_module_are_watched_as_it_is_imported(tmp_path: Path) -> None:
    clock = Clock()
    progress = ProgressWriter(str(tmp_path / "page"), clock)
    module = ModuleType("torch.distributed.checkpoint.state_dict_saver")

    def save() -> None:
        clock.now_ns += 4_000_000

    module.save = save  # type: ignore[attr-defined]
    found = watches(progress)
    assert found.keys() == CALLS.keys()

    found[module.__name__](module)
    module.save()

    assert progress.spent_ms()["checkpoint"] == 4.0
