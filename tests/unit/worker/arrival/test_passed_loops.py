"""Loops that have trained and are over are passed over by a process that comes later."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from recoverrun.worker.arrival import passed_loops
from recoverrun.worker.arrival.passed_loops import PassedLoop
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from tests.unit.arrivals import Newcomer, Process, both
from tests.unit.worker.arrival.test_winding import HEAD

pytestmark = pytest.mark.usefixtures("streams_put_back")

PHASES = {
    "a warm-up": """
seen = 0
for step in range(3):
    seen += 2
    loss = torch.ones((), requires_grad=True) * seen
    train(step, seen)
mean = loss.item() / (step + 1)
for step in range(6):  # held
    seen += 1
    train(step, seen, mean)
""",
    "epochs twice": """
for epoch in range(2):
    sampler.set_epoch(epoch)
    for i, x in enumerate(loader):
        train(i, x)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for i, x in enumerate(loader):  # held
        train(epoch, i, x)
""",
    "functions": """
def fit(part, epochs):
    worst = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x in loader:
            worst = max(worst, epoch)
            train(part, x)
    return worst
def last(lr):
    for x in shuffled:  # held
        train(lr, x)
first = fit("a", 2)
second = fit("b", 3)
last(first + second)
""",
    "the same function, a second time": """
def fit(part, steps):
    for step in range(steps):  # held
        train(part, step)
    return step
fit("b", fit("a", 3))
""",
    "a `while` until enough": """
step, losses = 0, [1.0]
while True:
    step += 1
    losses = losses + [float(step)]
    train(step)
    if step == 4:
        break
mean = sum(losses) / len(losses)
while step < 12:  # held
    step += 1
    train(step, mean)
""",
    "a `for` that is left by `break`": """
for step, x in enumerate(shuffled):
    train(step, x)
    if step == 2:
        break
for more, x in enumerate(shuffled):  # held
    train(step, more, x)
""",
    "two phases in each epoch": """
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x in loader:
        last = epoch + len(x)
        train("a", x)
    for x in loader:  # held
        train("b", last, x)
""",
    "a function twice in each epoch": """
def batch(part):
    for step in range(2):  # held
        train(part, step)
for number in range(4):
    batch(0)
    batch(1)
""",
    "a `return` in a loop": """
def fit(part, steps):
    for epoch in range(3):
        for x in loader:
            steps += 1
            train(part, x)
            if steps == 5:
                return steps, 0.5
    return None
first = fit("a", 0)
for step in range(first[0]):  # held
    train(step, first[1])
""",
    "a bare `return` in a `while`, behind which more is done": """
done = 0
def fit():
    global done
    try:
        while True:
            done += 1
            train(done)
            if done == 3:
                return
    finally:
        done += 10
assert fit() is None
for step in range(done):  # held
    train(step)
""",
    "a method that returns, twice in each epoch": """
class Trainer:
    def fit(self, part):
        for step, x in enumerate(loader):
            train(part, step)
            if step == 1:
                return [step, part]
trainer = Trainer()
for epoch in range(3):
    last = trainer.fit(epoch)
    for step in range(2):  # held
        train(epoch, last[1], step)
""",
    "one that trains nothing, between": """
def measure():
    found = 0
    for step in range(3):
        found += 1
        if step > 7:
            train(step)
    return found
for step in range(3):
    train(step)
found = measure()
for step in range(found, 9):  # held
    train(step)
""",
    "a counter of the module": """
done = 0
def fit(steps):
    global done
    for step in range(steps):
        done += 1
        train(step)
fit(4)
for step in range(done, 9):  # held
    train(step)
""",
}


def held(text: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# held"))


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("name", PHASES)
def test_it_goes_on_in_the_second_phase_as_the_others_do(name: str, number: int) -> None:
    text = HEAD + PHASES[name]

    survivor, newcomer = both(text, held(text), number)

    assert newcomer.noted == survivor.noted
    # Iterators that have ended in a loop that is over were never made here.
    assert [loops for loops, *_ in newcomer.stood] == [loops for loops, *_ in survivor.stood]


@pytest.mark.parametrize("name", ["functions", "a `while` until enough"])
def test_one_that_began_while_others_were_in_the_first_phase_comes_as_well(name: str) -> None:
    text = HEAD + PHASES[name]
    survivor = Process(text, held(text), 2)
    survivor.run()

    newcomer = Newcomer(text, survivor.told, held(text), 0, passed=0)
    newcomer.run()

    assert newcomer.noted == survivor.noted
    over = len(survivor.told.standing.loops[0].passed)
    assert newcomer.came[: 1 + over] == ["before", *["passes over"] * over]


def at_top(
    text: str, number: int, asked: Callable[[ScriptRuntime], list[tuple[PassedLoop, ...]]]
) -> Any:
    """Words of the survivor itself."""
    found: list[Any] = []

    class Asked(Process):
        def _top(self, top: Any) -> None:
            if top.loop.line == held(text):
                try:
                    found.append(asked(self.runtime))
                except NotReachable as why:
                    found.append(str(why))

    Asked(text, 0, 0).run()
    return found[number]


RETURNS = """
def fit():
    for step in range(9):
        train(step)
        if step == 2:
            return object()
fit()
for step in range(4):  # held
    train(step)
"""

RAISES = """
try:
    for step in range(9):
        train(step)
        if step == 2:
            raise ValueError
except ValueError:
    pass
for step in range(4):  # held
    train(step)
"""

LEFT = (
    "the loop at s.py:{}, which has trained, was left by an error, or by `return` with more than "
    "figures"
)

BRANCHES = """
for step in range(9):
    train(step)
    if step == 2:
        break
else:
    train(9)
for step in range(4):  # held
    train(step)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (RETURNS, LEFT.format(3)),
        (RAISES, LEFT.format(3)),
        (BRANCHES, "the loop at s.py:2, which has trained and is over, has an `else`"),
    ],
)
def test_one_that_cannot_be_passed_over_is_named(text: str, reason: str) -> None:
    assert at_top(text, 0, lambda runtime: passed_loops.told(runtime.loop_stack)) == reason
    assert at_top(text, 0, lambda runtime: [passed_loops.for_good(runtime.loop_stack)]) == reason


def test_phases_within_an_epoch_are_none_that_are_over_for_good() -> None:
    text = PHASES["two phases in each epoch"].replace("sampler.set_epoch(epoch)", "pass")
    text = text.replace("loader", "'abc'")

    def for_good(runtime: ScriptRuntime) -> list[tuple[PassedLoop, ...]]:
        return [passed_loops.for_good(runtime.loop_stack)]

    assert at_top(text, 4, for_good) == [()]
    outer, inner = at_top(text, 4, lambda runtime: passed_loops.told(runtime.loop_stack))
    assert (outer, len(inner)) == ((), 1)


def test_variables_travel_as_plain_values_and_large_ones_by_name_alone() -> None:
    text = HEAD + (
        "for step in range(3):\n"
        "    mean, large, rows = torch.ones(2) * step, torch.ones(5000), [step, 'a']\n"
        "    train(step)\n"
        "for step in range(3):  # held\n"
        "    train(step)\n"
    )
    survivor = Process(text, held(text), 0)
    survivor.run()
    (passed,) = survivor.told.standing.loops[0].passed

    again = PassedLoop.unpack(passed.pack())

    assert again == passed
    assert set(passed.values) == {"step", "mean", "rows"}
    assert passed.unlike == ("large",)
    newcomer = Newcomer(text, survivor.told, held(text), 0)
    newcomer.run()
    assert newcomer.names["rows"] == [2, "a"] and newcomer.names["large"] is None
    assert torch.equal(newcomer.names["mean"], torch.tensor([2.0, 2.0]))


@pytest.mark.parametrize("wrong", [[], ["s.py:1", 0, {}], ["s.py:1", "x", {}, []]])
def test_what_is_no_passed_loop_is_refused(wrong: list[Any]) -> None:
    with pytest.raises(ValueError, match="unpack|invalid literal"):
        PassedLoop.unpack(wrong)
