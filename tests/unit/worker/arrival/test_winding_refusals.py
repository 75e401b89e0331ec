"""Refusals where a fresh process cannot come to the others: a sentence, there or in the fresh
process.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from recoverrun.worker.arrival import slot_sources
from recoverrun.worker.arrival.iterator_places import HeldIterator
from recoverrun.worker.arrival.winding import LoopPlace, SurvivorPosition, standing
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from tests.unit.arrivals import Newcomer, Process

pytestmark = pytest.mark.usefixtures("streams_put_back")

DATA = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return float(index)

class Others(Numbers):
    pass

loader = DataLoader(Numbers(), 2)
"""


def held(text: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# held"))


def reason(
    there: str,
    here: str = "",
    number: int = 3,
    change: Callable[[SurvivorPosition], SurvivorPosition] | None = None,
) -> str:
    """Why a process that runs `here` cannot come to top `number` of the loop that is held `there`.

    `change` is what becomes of what it is told.
    """
    survivor = Process(there, held(there), number)
    survivor.run()
    told = survivor.told
    if change is not None:
        told.standing = change(told.standing)
    newcomer = Newcomer(here or there, told, 0, 0)
    with pytest.raises(NotReachable) as raised:
        newcomer.run()
    assert newcomer.runtime.winds is not None, "it never arrived"
    return str(raised.value)


# --------------------------------------------------------------------------- in the survivor


def test_no_loop_is_under_way() -> None:
    with pytest.raises(NotReachable, match="no loop of the script is under way"):
        standing(ScriptRuntime(0))


# --------------------------------------------------------------------------- in the newcomer


def test_a_range_without_the_item() -> None:
    there = "for step in range(9):  # held\n    train(step)\n"

    assert reason(there, there.replace("9", "4, 9, 2")) == (
        "the loop at s.py:1 goes over range(4, 9, 2), which lacks 3, where the others are"
    )


def test_a_loop_over_too_few_items() -> None:
    there = "for name in 'abcdef':  # held\n    train(name)\n"

    assert reason(there, there.replace("abcdef", "ab")) == (
        "the loop at s.py:1 ended after 2 of 3 items, which the others have passed"
    )


def test_an_iterator_that_ends_early() -> None:
    there = "for name in iter('abcdef'):  # held\n    train(name)\n"

    assert reason(there, there.replace("abcdef", "ab")) == (
        "str_ascii_iterator ended after 2 of 3 items, which the others have passed"
    )


def test_another_loop_than_theirs() -> None:
    def elsewhere(told: SurvivorPosition) -> SurvivorPosition:
        return replace(told, loops=(replace(told.loops[0], loop_id="s.py:77"),))

    there = "for step in range(9):  # held\n    train(step)\n"
    survivor = Process(there, 1, 3)
    survivor.run()

    class Late(Newcomer):
        def before(self, loop_id: str) -> SurvivorPosition:
            return elsewhere(self.place.standing)

    with pytest.raises(NotReachable, match="is at the loop at s.py:1, while others train in the"):
        Late(there, survivor.told, 0, 0).run()


def test_an_inner_loop_that_is_not_come_to() -> None:
    there = """
for epoch in range(5):
    if ready(epoch):
        for step in range(3):  # held
            train(epoch, step)
"""
    survivor = Process(there, held(there), 3, ready=lambda epoch: True)
    survivor.run()
    newcomer = Newcomer(there, survivor.told, 0, 0, ready=lambda epoch: epoch > 1)

    with pytest.raises(NotReachable) as raised:
        newcomer.run()

    assert str(raised.value) == (
        "this process did not come to the loop at s.py:4 in iteration 1 of the one at s.py:2, as "
        "the others did"
    )


NOISE = """
import torch
def noise():
    while True:
        yield torch.rand(1)
def fit():
    for step, x in enumerate(noise()):  # held
        train(x)
        if step == 5:
            break
fit()
"""


def test_a_generator_that_draws() -> None:
    assert reason(NOISE) == "enumerate draws random numbers as its items are passed again"


def test_it_may_draw_where_a_process_has_data_of_its_own() -> None:
    survivor = Process(NOISE, held(NOISE), 2)
    survivor.run()
    survivor.told.standing = replace(survivor.told.standing, own_data=True)
    newcomer = Newcomer(NOISE, survivor.told, 0, 0)

    newcomer.run()

    assert newcomer.came == ["before", "finds", "arrived"]
    assert len(newcomer.noted) == len(survivor.noted)


def test_items_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    there = """
def slow():
    for n in range(100):
        tick()
        yield n
def fit():
    for n in slow():  # held
        train(n)
fit()
"""
    now = [0.0]
    monkeypatch.setattr(slot_sources.time, "monotonic", lambda: now[0])

    def tick() -> None:
        now[0] += 2.0

    survivor = Process(there, held(there), 40, tick=tick)
    survivor.run()
    newcomer = Newcomer(there, survivor.told, 0, 0, tick=tick)
    with pytest.raises(NotReachable) as raised:
        newcomer.run()

    assert str(raised.value) == "to pass 40 items of slow again would take about 80 s"


READS = (
    DATA
    + """
batches = iter(loader)
for step in range(9):  # held
    train(next(batches))
"""
)


def test_an_iterator_that_has_given_more() -> None:
    here = READS.replace("iter(loader)", "iter(loader); [next(batches) for _ in range(5)]")

    assert reason(READS, here) == (
        "data iterator 0 has given 5 items in this process, and 3 in its slot"
    )


def test_an_iterator_over_other_data() -> None:
    here = READS.replace("DataLoader(Numbers()", "DataLoader(Others()")

    assert reason(READS, here) == (
        "data iterator 0 is one of DataLoader of Others by BatchSampler, SequentialSampler, not of "
        "DataLoader of Numbers by BatchSampler, SequentialSampler"
    )


def test_an_iterator_over_other_rows() -> None:
    there = READS.replace("Numbers(), 2", "torch.utils.data.Subset(Numbers(), range(0, 20)), 2")
    here = there.replace("range(0, 20)", "range(4, 24)")

    assert reason(there, here) == (
        "DataLoader of Subset by BatchSampler, SequentialSampler goes through other rows here than "
        "in its slot"
    )


def test_a_header_that_takes_other_items() -> None:
    there = (
        DATA
        + """
for x in zip(loader, DataLoader(Numbers(), 2)):  # held
    train(x)
"""
    )
    here = there.replace("zip(loader, DataLoader(Numbers(), 2))", "loader")

    def more(told: SurvivorPosition) -> SurvivorPosition:
        first, *others = told.sources
        return replace(told, sources=(replace(first, count=first.count + 1), *others))

    assert reason(there, here, change=more) == (
        "data iterator 0 has given 4 items in this process, and 5 in its slot"
    )


def test_an_iterator_that_cannot_be_made() -> None:
    survivor = Process(READS, held(READS), 3)
    survivor.run()
    newcomer = Newcomer(READS, survivor.told, 0, 0)
    hold = newcomer.winding.sources.hold

    with pytest.raises(NotReachable, match="data iterator 7 of the slot cannot be made in this"):
        hold(HeldIterator(7, ("loader",), 3), None, {})
    with pytest.raises(NotReachable, match="how far filter has come is unknown"):
        hold(HeldIterator(-1, (), 3), filter(None, "abc"), {})


def test_places_travel_as_plain_values() -> None:
    survivor = Process(READS, held(READS), 3)
    survivor.run()
    told = survivor.told.standing

    assert SurvivorPosition.unpack(told.pack()) == told
    assert told.loops == (LoopPlace(f"s.py:{held(READS)}", 3, 3, 1),)
    assert [(one.number, one.before, one.count) for one in told.sources] == [(0, 3, 3)]
    for wrong in ([], [[], [], "x"], [[["a", "b", 0, 0]], [], 0]):
        with pytest.raises((ValueError, TypeError)):
            SurvivorPosition.unpack(wrong)
