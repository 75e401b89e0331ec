"""Loops that only look as if they trained are not looked at for ever."""

import ast
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.hooks import idle
from recoverrun.hooks.callgraph import Hot
from recoverrun.hooks.rewrite import instrument
from recoverrun.hooks.runtime import Refused, ScriptRuntime
from recoverrun.hooks.script import RUNTIME_NAME
from recoverrun.hooks.senses import TorchSenses

BOUND = 20
SCRIPT = """
def train(items, update):
    for item in items:
        update(item)

def nested(items, update):
    for item in items:
        for part in range(4):
            update((item, part))
"""


class Play:
    """A script whose `update` is a name that trains, and what it has looked at so far."""

    def __init__(self) -> None:
        self.runtime = ScriptRuntime(0)
        self.runtime.senses = TorchSenses()
        self.looks = 0
        made = instrument(ast.parse(SCRIPT), "s.py", Hot(frozenset({"update"}), frozenset()))
        for loop in made.loops:
            self.runtime.register(loop)
        namespace: dict[str, Any] = {RUNTIME_NAME: self.runtime, "__name__": "s"}
        exec(made.code, namespace)
        self.script = SimpleNamespace(**namespace)
        self.runtime.on_region_top = self._look

    def _look(self, turn: object) -> None:
        self.looks += 1

    def run(self, function: str, items: Iterable[Any], trains: Any) -> bool:
        """Whether the first backward, where `trains` is passed on, is that of a microbatch."""
        found: list[bool] = []

        def update(item: Any) -> None:
            if item == trains:
                found.append(self.runtime.note_backward() is not None)
                if not found[0]:
                    self.runtime.learn()

        getattr(self.script, function)(items, update)
        return found[0]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "BOUND", BOUND)


def test_a_loop_that_warms_up_before_it_trains_is_served() -> None:
    play = Play()

    assert play.run("train", range(BOUND), BOUND - 1)
    assert play.looks == BOUND


@pytest.mark.parametrize(
    ("function", "trains"), [("train", 5 * BOUND), ("nested", (BOUND, 0))], ids=["loop", "inner"]
)
def test_one_that_goes_on_and_on_is_looked_at_no_more(function: str, trains: Any) -> None:
    play = Play()

    with pytest.raises(Refused, match=f"went round {BOUND} times before it first trained"):
        play.run(function, range(6 * BOUND), trains)

    assert play.looks <= 2 * BOUND


def test_a_loop_that_trains_is_served_after_others_went_on_and_on() -> None:
    play = Play()
    play.script.nested(range(5 * BOUND), lambda item: None)

    assert play.run("train", range(3), 1)
