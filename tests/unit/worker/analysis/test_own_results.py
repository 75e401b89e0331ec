"""Names that come of what each rank computes for itself."""

import ast

import pytest

from recoverrun.worker.analysis import own_results
from recoverrun.worker.analysis.own_results import OwnResults

LOOP = """
model = wrapped(Net())
for step, (x, y) in enumerate(loader):
    out = model(x)
    losses = distance(out, y)
    loss = losses.mean()
    {backward}
    optimizer.step()
    {behind}
"""


def holds(text: str, name: str, *differing: str, file: str = "train.py", entry: str = "") -> bool:
    found = OwnResults({file: text.encode()}, lambda _: ast.parse(text))
    return found.holds(name, entry, frozenset(differing))


def behind(statement: str, backward: str = "loss.backward()") -> str:
    return LOOP.format(behind=statement, backward=backward)


@pytest.mark.parametrize(
    "statement",
    [
        "level = loss.item()",
        "scores[rows] = losses.detach()",
        "level = level + 1 if out.max() > 1 else level",
        "if losses.max() < 0.1: level += 1",
        "seen.append(loss.item()); level = sum(seen)",
        "state.level = loss; level = state.level",
        "level = halved(loss)\ndef halved(value): return value / 2",
    ],
)
def test_what_comes_of_a_loss_is_a_ranks_own(statement: str) -> None:
    name = "scores" if statement.startswith("scores") else "level"

    assert holds(behind(statement), name)


@pytest.mark.parametrize(
    "statement",
    [
        "level += 1",
        "level = step",
        "level = model.depth",
        "level = loss.numel()",
        "if isfinite(loss): level += 1",
        "dist.all_reduce(loss); level = loss.item()",
        "level = gathered(loss).mean()",
        "level = reduced_mean(loss)",
        "level = clip_grad_norm_(model.parameters(), 1.0)",
        "level = model.weight.grad.norm()",
    ],
)
def test_what_all_ranks_have_is_not(statement: str) -> None:
    text = behind(statement.replace("gathered", "accelerator.gather"))

    assert not holds(text, "level")


@pytest.mark.parametrize(
    "backward",
    [
        "loss.backward()",
        "(loss / 4).backward()",
        "scaler.scale(loss).backward()",
        "accelerator.backward(loss)",
        "losses.mean().backward()",
    ],
)
def test_a_loss_is_what_a_backward_begins_at(backward: str) -> None:
    text = behind("level = losses.max()", backward)

    assert holds(text, "level")
    assert not holds(text, "model") and not holds(text, "optimizer") and not holds(text, "step")


@pytest.mark.parametrize(
    ("header", "own"),
    [
        ("for x in loader", True),
        ("for item, x in enumerate(loader)", True),
        ("for item, (x, y) in tqdm(enumerate(loader))", True),
        ("for item, x in zip(range(9), loader)", True),
        ("for x in range(9)", False),
        ("for x in trange(9)", False),
        ("for x, y in enumerate(loader)", False),
    ],
)
def test_items_of_the_loop_are_a_ranks_own_and_numbers_are_not(header: str, own: bool) -> None:
    text = f"{header}:\n    net.cost().backward()\n    level = x\n    turn = item\n"

    assert holds(text, "level") is own and not holds(text, "turn")


def test_so_is_what_an_iteration_makes_for_a_loss_without_a_name() -> None:
    text = """
x = start()
for step in range(9):
    rows = chosen()
    distance(model(rows), x).backward()
    level, other = rows.mean(), x.mean()
"""
    assert holds(text, "rows") and not holds(text, "model") and not holds(text, "x")


def test_a_factor_of_a_loss_is_none() -> None:
    text = "scale = 2.0\n" + behind("scale *= 2", "(loss * scale).backward()")

    assert not holds(text, "scale")


def test_what_comes_of_values_that_differ_is_a_ranks_own_too() -> None:
    text = "for epoch in range(3):\n    weights = balanced(costs)\n"

    assert holds(text, "weights", "costs") and not holds(text, "weights", "rank")


def test_an_object_that_is_given_something_is_not_all_of_it() -> None:
    """`self` is given the loss by a method that nobody knows."""
    text = """
class Trainer:
    def step(self, x):
        loss = self.net(x)
        loss.backward()
        self.log(loss)
        self.kept = loss.item()
        self.turn = self.turn + self.width
"""
    assert holds(text, "kept") and not holds(text, "turn")


def test_an_entry_of_a_dict_is_not_all_of_it() -> None:
    text = behind('state["mean"] = loss.item(); state["step"] += 1; level = state["mean"] * 2')

    assert holds(text, "state", entry="['mean']") and not holds(text, "state", entry="['step']")
    assert not holds(text, "state") and holds(text, "level")


def test_so_is_one_that_differs() -> None:
    text = 'def main():\n    state = {}\n    level = state["mean"]\n    turn = state["step"]\n'

    assert holds(text, "level", "state['mean']") and not holds(text, "turn", "state['mean']")


def test_packages_are_not_followed() -> None:
    text = behind("level = loss.item()")

    assert not holds(text, "level", file="/usr/lib/site-packages/trainer.py")


def test_of_too_many_functions_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_results, "MOST_FUNCTIONS", 0)

    assert not holds(behind("level = loss.item()\ndef other(): pass"), "level")


def test_of_an_expression_of_thousands_of_levels_nothing_is_said() -> None:
    deep: ast.expr = ast.Constant(1)
    for _ in range(3_000):
        deep = ast.BinOp(deep, ast.Add(), ast.Constant(1))
    text = behind("level = loss.item()")
    tree = ast.parse(text)
    tree.body.append(ast.Expr(deep))

    found = OwnResults({"train.py": text.encode()}, lambda _: tree)
    assert not found.holds("level", "", frozenset())
