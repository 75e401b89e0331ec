"""Objects that only rank 0 had, made anew by its deputy."""

import ast
import gc
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.instrumentation import RUNTIME_NAME
from recoverrun.worker.rank0.shared_values import Supply
from recoverrun.worker.rewriting.rank0_transformer import transform
from recoverrun.worker.tracking.rank0_gate import Rank0Gate


class Script:
    """Of rank 1. `lose` makes it the deputy; what it makes anew is told in `words`."""

    def __init__(self, source: str, **names: Any) -> None:
        tree = ast.parse(dedent(source))
        self.words: list[str] = []
        self.gate = Rank0Gate(1)
        self.gate.hand_on(transform(tree, "train.py"))
        runtime = SimpleNamespace(gate=self.gate)
        session: Any = SimpleNamespace(runtime=runtime, reporter=SimpleNamespace(notice=self.tell))
        self.supply = Supply(session).supply
        self.names: dict[str, Any] = {
            RUNTIME_NAME: self.gate, "rank": 1, "Box": Box, "lose": self.lose, **names,
        }  # fmt: skip
        exec(compile(tree, "train.py", "exec"), self.names)

    def lose(self) -> None:
        self.gate.is_deputy = lambda: True
        self.gate.supply = self.supply

    def tell(self, words: str) -> None:
        self.words.append(words)


class Box:
    def __init__(self, *held: Any) -> None:
        self.held = held


def test_what_the_function_has_made_on_rank_0_is_made_in_its_order() -> None:
    script = Script(
        """
        def main(size):
            if rank == 0:
                rows = Box(size)
                loader = Box(rows)
            average = Box("of", loader_of(size)) if rank == 0 else None
            lose()
            if rank == 0:
                seen.extend([loader, rows, average])
        seen = []
        main({"much": 3})
        """,
        loader_of=lambda size: size["much"],
    )

    loader, rows, average = script.names["seen"]

    assert loader.held == (rows,)
    assert (rows.held, average.held) == (({"much": 3},), ("of", 3))
    assert sorted(words.split()[6] for words in script.words) == ["average", "loader", "rows"]


def test_an_attribute_is_made_of_what_its_constructor_was_given() -> None:
    script = Script(
        """
        class Trainer:
            def __init__(self, model, folder, huge):
                self.average = Box(model, folder) if rank == 0 else None
                self.other = Box(huge) if rank == 0 else None
            def save(self):
                if rank == 0:
                    seen.append(self.average)
                    seen.append(self.other)
        class Another:
            def __init__(self):
                if rank == 0:
                    self.average = "of another"
        model, seen = Box(), []
        trainer = Trainer(model, "runs", [object()])
        Another()
        lose()
        trainer.save()
        """
    )

    average, other = script.names["seen"]

    assert average.held == (script.names["model"], "runs")
    assert other is None
    assert "other could not be made: NameError" in script.words[-1]


def test_an_attribute_is_made_of_another_one_that_rank_0_alone_has() -> None:
    script = Script(
        """
        class Logger:
            def __init__(self, folder):
                if rank == 0:
                    self.file = Box(folder)
                    self.columns = Box(self.file, folder)
                    self.above = Box(self.file)
            def log(self):
                if rank == 0:
                    seen.extend([self.above, self.columns, self.file])
        seen = []
        logger = Logger("runs")
        lose()
        logger.log()
        """
    )

    above, columns, file = script.names["seen"]

    assert above.held == (file,) and columns.held == (file, "runs") and file.held == ("runs",)
    made = ["self.above", "self.columns", "self.file"]
    assert sorted(words.split()[6] for words in script.words) == made


def test_nothing_large_is_kept_alive_for_it() -> None:
    script = Script(
        """
        def setup():
            weights = Box()
            if rank == 0:
                kept = Box(weights)
        setup()
        """
    )
    gc.collect()

    recipe = next(iter(script.gate.recreated._recipes.values()))

    assert recipe.has("weights") is None


@pytest.mark.parametrize("condition", ["wanted and rank == 0", "rank == 0 and wanted"])
def test_what_rank_0_did_not_make_either_is_not_made(condition: str) -> None:
    script = Script(
        f"""
        def main(wanted):
            run = None
            if {condition}:
                run = Box()
            lose()
            if rank == 0:
                seen.append(run)
        seen = []
        main(False)
        """
    )

    assert script.names["seen"] == [None]
    assert script.words == []


def test_an_error_in_making_is_told_and_left() -> None:
    script = Script(
        """
        if rank == 0:
            writer = 1 / 0
        lose()
        if rank == 0:
            seen.append(globals().get("writer", writer_of(writer) if False else None))
        """,
        seen=[],
        writer_of=None,
    )

    assert script.names["seen"] == [None]
    assert "writer could not be made: ZeroDivisionError" in script.words[0]
