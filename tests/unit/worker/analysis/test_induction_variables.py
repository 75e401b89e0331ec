"""Names that a script only counts."""

import ast

import pytest

from recoverrun.worker.analysis import induction_variables
from recoverrun.worker.analysis.induction_variables import InductionVariables

LOOP = """
step = 0
for epoch in range(9):
    for turn, (x, y) in enumerate(loader):
        loss = distance(model(x), y)
        loss.backward()
        optimizer.step()
        {behind}
"""


def behind(text: str, name: str = "level") -> frozenset[str] | None:
    sources = {"train.py": LOOP.format(behind=text).encode()}
    return InductionVariables(sources, lambda file: ast.parse(sources[file])).behind(name)


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("level = 3", {"level"}),
        ("level += 1", {"level"}),
        ("self.level = self.level + 1", {"level"}),
        ("level: int = min(epoch // 4, 2)", {"level", "epoch"}),
        ("if (turn + 1) % 4 == 0: level += 1", {"level", "turn"}),
        ("level, other = 1 if step > 9 else 0, loss", {"level", "step"}),
        ("(level := step)", {"level", "step"}),
        ("while turn < 3: level = 4", {"level", "turn"}),
    ],
)
def test_a_count_comes_of_constants_and_other_counts(statement: str, names: set[str]) -> None:
    assert behind(statement) == names


@pytest.mark.parametrize(
    "statement",
    [
        "level = loss",
        "level += x",
        "level = loss.item()",
        "level = costs[step]",
        "level = chosen(step)",
        "level = settings.level",
        "level, other = pair",
        "if loss > 1: level += 1",
        "level.add(1)",
        "self.level.add(1)",
        "level[0] = 1",
        "del level",
        "for level in rows: pass",
        "for turn, level in enumerate(rows): pass",
        "with made() as level: pass",
        "seen = [level for level in rows]",
        "def counted(level): pass",
        "def level(): pass",
        "try: pass\n        except ValueError as level: pass",
        "match x:\n            case [*level]: pass",
        "match x:\n            case {**level}: pass",
        "match x:\n            case level: pass",
        "other = loss; level = other",
        "level = max(step, 2)\ndef max(*values): return model(*values)",
    ],
)
def test_what_may_come_of_anything_else_is_none(statement: str) -> None:
    assert behind(statement) is None


def test_all_files_count_that_name_it() -> None:
    sources = {"train.py": b"level += WIDTH", "config.py": b"WIDTH = 4", "other.py": b"level()"}
    parsed = []

    def tree(file: str) -> ast.Module:
        parsed.append(file)
        return ast.parse(sources[file])

    found = InductionVariables(sources, tree)

    assert found.behind("level") == {"level", "WIDTH"} and found.behind("WIDTH") == {"WIDTH"}
    assert parsed == ["train.py", "config.py"]  # each once, and none that only calls it


def test_a_name_of_many_files_or_of_one_with_errors_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert InductionVariables({"train.py": b"level = ("}, lambda _: None).behind("level") is None

    monkeypatch.setattr(induction_variables, "MOST_FILES", 1)
    sources = {"a.py": b"level = 1", "b.py": b"level = 2"}
    assert InductionVariables(sources, lambda one: ast.parse(sources[one])).behind("level") is None
