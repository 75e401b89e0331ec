"""The statements behind a backward that only compute variables from others."""

import ast
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.analysis.tail_slice import TailSlice, changed_elsewhere, tail_behind

EVERY = frozenset({"state", "mean", "STATS", "bank", "at", "queue", "center", "history", "x", "y"})


def tail(text: str, names: frozenset[str] = EVERY) -> TailSlice | None:
    """The slice of a body behind its first line."""
    return tail_behind(ast.parse(textwrap.dedent(text)).body, 2, "train.py", names)


def paths(text: str) -> set[str]:
    found = tail(text)
    return set() if found is None else {".".join(path) for path in found.written}


def test_computed_values_are_told_and_updates_are_left_out() -> None:
    assert paths("""
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        state.mean = 0.9 * state.mean + 0.1 * loss.item()
        STATS["mean"] += loss.item()
        bank[at : at + len(k)] = k.detach()
        at = (at + len(k)) % 64
        if step % 2 == 0:
            queue.append(k)
        with torch.no_grad():
            center.mul_(0.9).add_(k.mean(0), alpha=0.1)
    """) == {"state.mean", "STATS.['mean']", "bank", "at", "queue", "center"}


@pytest.mark.parametrize(
    "rest",
    [
        "x = evaluate(model)",
        "state.x = scheduler.get_last_lr()[0]",
        "norm = clip_grad_norm_(params, 1.0)\nx = norm.item()",
        "x = y = torch.rand(1)",
        "if step % 10:\n    continue\nx = loss.item()",
        "x = loss.item()\nx = model(x)",
        "meter.update(loss.item())\nx = meter.mean",
        "x = total\ntotal, y = train(x), 1\nx = total",
        "state.x = loss.item()\nlog = dict(state)\nkeep = state",
        "x = loss.detach()\nx.mul_(2)",
        "x = y\nx += 1",
        "x = y\nx[0] = 1",
        "x, y = y, loss\nx.append(1)",
        "x = torch.cat([a, b], out=c)",
    ],
)
def test_nothing_is_told_of_what_other_code_makes(rest: str) -> None:
    lines = textwrap.indent(rest, "    ")
    body = ast.parse(f"for i in rows:\n    loss.backward()\n{lines}").body[0]
    assert isinstance(body, ast.For)

    found = tail_behind(body.body, 2, "train.py", EVERY)

    told = set() if found is None else set(found.written)
    assert told.isdisjoint({("x",), ("state", "x"), ("y",)})


def test_the_script_s_own_values_stay_as_they_are() -> None:
    found = tail("""
        loss.backward()
        state.mean = 0.9 * state.mean + 0.1 * loss
        history.append(state.mean)
        STATS["n"] += 1
    """)
    assert found is not None
    names: dict[str, Any] = {
        "state": SimpleNamespace(mean=1.0), "loss": 2.0, "history": [], "STATS": {"n": 4}
    }  # fmt: skip

    made: dict[str, Any] = {}
    values_at = {"state.mean": 1.0, "history": names["history"], "STATS.['n']": 4}
    for path, variable in found.begins.items():
        began = values_at[".".join(path)]
        made[variable] = began.copy() if type(began) is list else began
    exec(found.code, names, made)

    values = {path[-1]: made[variable] for path, variable in found.written.items()}
    assert values == {"mean": 1.1, "history": [1.1], "['n']": 5}
    assert names["state"].mean == 1.0 and not names["history"] and names["STATS"] == {"n": 4}


def test_what_nobody_reads_is_not_computed() -> None:
    text = """
        loss.backward()
        rate = 0.1
        log.append(loss.item())
        state.mean = (1 - rate) * loss.item()
    """
    found = tail(text, frozenset({"mean"}))

    assert found is not None and set(found.written) == {("state", "mean")}
    assert set(found.begins) == {("rate",), ("state", "mean")}
    assert tail(text, frozenset({"loss"})) is None


@pytest.mark.parametrize(
    "call", ["log(state)", "state.reset()", "track(mean=state.mean)", "keep([state])"]
)
def test_nothing_is_told_of_what_another_call_is_given(call: str) -> None:
    text = f"\nloss.backward()\nstate.mean = loss.item()\n{call}"

    assert tail(text) is None
    assert tail("\nloss.backward()\nmeter.update(loss.item())\nstate.mean = loss.item()")


def test_other_code_that_may_change_it_while_the_loop_runs() -> None:
    tree = ast.parse("""
class State:
    def __init__(self):
        self.mean = 1.0

    def reset(self):
        self.best = 0.0

def count():
    global steps
    steps += 1
    totals["n"] += 1
    history.append(1)

def main():
    state.first = 1.0
    for epoch in range(3):
        state.rate = 0.1
        for x in rows:
            state.own = x
    state.last = 1.0
""")

    changed = changed_elsewhere({"train.py": tree}, "train.py", 19)

    assert changed == {"best", "steps", "totals", "['n']", "history", "rate"}
