"""Variables of a module that functions of the script move: as they were at the top, and back."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.replay import captures as captures_module
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.substitution import Substitution, UndoRecord
from recoverrun.worker.rng.registry import Registry
from recoverrun.worker.rng.streams import read_streams
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from tests.unit.contexts import at, loop
from tests.unit.worker.replay.test_executor_model_state import Coded

pytestmark = pytest.mark.usefixtures("streams_put_back", "signals_put_back")

CODE = """
at = 1

def move():
    global at
    at += 2
    return at
"""


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(captures_module, "REGISTRY", Registry())
    yield


class Stage:
    """An iteration of a loop of the module or of a function, noted as it began."""

    def __init__(self, where: str, names: dict[str, Any] | None = None, **then: Any) -> None:
        self.module: dict[str, Any] = {}
        exec(CODE, self.module)
        self.module.update(then)
        self.top: Any = SimpleNamespace(
            globals=self.module, names=names or {}, loop=loop(module_level=where == "module"),
            attributes={}, context=at(0, names={"at": self.module["at"], **then}),
            groups=[], iterator_lists=[], first_writes=0, frame_id=0,
        )  # fmt: skip
        executor = Executor(ScriptRuntime(0), pytest.fail)
        self.substitution = Substitution(executor.runtime, executor.influence, executor.shares)
        self.undo = UndoRecord(read_streams(), {})

    def move(self) -> int:
        return int(self.module["move"]())

    def apply(self, **theirs: Any) -> dict[str, Any]:
        return self.substitution.apply(self.top, theirs, self.undo)

    def revert(self) -> None:
        self.substitution.revert(self.top, self.undo)


WHERE = pytest.mark.parametrize("where", ["module", "function"])


@WHERE
def test_what_a_function_has_moved_is_as_it_was_at_the_top(where: str) -> None:
    stage = Stage(where)
    assert stage.move() == 3

    names = stage.apply()

    assert names["at"] == 1, "the loop's own code reads it"
    assert stage.move() == 3, "and so does the function"


@WHERE
def test_what_a_function_has_moved_is_afterwards_what_it_was_before(where: str) -> None:
    stage = Stage(where)
    stage.move()

    stage.apply()
    stage.move()
    stage.move()
    stage.revert()

    assert stage.module["at"] == 3


@WHERE
def test_another_rank_s_value_is_its_own(where: str) -> None:
    stage = Stage(where)
    stage.move()

    stage.apply(at=7)
    moved = stage.move()
    stage.revert()

    assert (moved, stage.module["at"]) == (9, 3)


@WHERE
def test_what_was_none_as_the_iteration_began_is_none_again(where: str) -> None:
    """Something is made once, on the way."""
    stage, made = Stage(where, cache=None), object()
    stage.module["cache"] = made

    names = stage.apply()
    assert names["cache"] is stage.module["cache"] is None
    stage.revert()

    assert stage.module["cache"] is made


@WHERE
def test_tensors_of_the_module_are_left_alone(where: str) -> None:
    """They may be large, and what is changed in place is put back otherwise (`story`)."""
    stage, now = Stage(where, mean=torch.zeros(2)), torch.ones(2)
    stage.module["mean"] = now

    names = stage.apply()

    assert names["mean"] is stage.module["mean"] is now
    assert now.tolist() == [1.0, 1.0]


@WHERE
def test_variables_of_the_iteration_s_own_snapshot_are_left_alone(where: str) -> None:
    """The body finds those as they were at its top without more ado."""
    stage = Stage(where, {"at": 5})

    names = stage.apply()

    assert names["at"] == 5


def test_a_variable_of_a_function_hides_that_of_the_module() -> None:
    stage = Stage("function", {"at": 5})
    stage.move()

    stage.apply()

    assert stage.module["at"] == 3


@pytest.mark.parametrize("iterations", [1, 3])
def test_an_execution_moves_it_from_where_it_was(iterations: int) -> None:
    """By two in each iteration; the last of them is executed as another rank."""
    seen: list[int] = []

    def code(script: Coded, part: Any) -> None:
        module = script.script.flat.__globals__
        seen.append(module["at"])
        module["at"] += 2

    script = Coded(code)
    module = script.script.flat.__globals__
    module["at"] = 1
    script.run("flat", [[n] for n in range(iterations)])

    script.as_another(script.runtime.microbatches[-1])

    ours = [1 + 2 * n for n in range(iterations)]
    assert seen == [*ours, ours[-1]]
    assert module["at"] == 1 + 2 * iterations


def test_a_variable_that_was_deleted_since_is_there_again_and_then_gone() -> None:
    script = Coded(lambda s, part: s.script.flat.__globals__.pop("gone", None))
    script.script.flat.__globals__["gone"] = 1
    script.run("flat", [[0]])

    script.as_another(script.runtime.microbatches[-1])

    assert "gone" not in script.script.flat.__globals__
