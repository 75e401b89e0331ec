"""The values that the rest of an iteration will give to variables, on copies."""

from types import SimpleNamespace
from typing import Any

import torch

from recoverrun.worker.analysis.program_slice import SliceNames
from recoverrun.worker.replay.influence import Influence
from recoverrun.worker.replay.tails import Tails
from tests.unit.contexts import loop

NONE: frozenset[str] = frozenset()
TEXT = b"""\
for x in rows:
    loss = model(x, state.mean, bank)
    loss.backward()
    optimizer.step()
    state.mean = 0.9 * state.mean + 0.1 * loss.item()
    bank[at : at + 1] = loss.detach()
    at = at + 1
"""


def behind(
    names: dict[str, Any], *, unknown: frozenset[Any] = NONE, line: int = 3, text: bytes = TEXT
) -> Any:
    influence = Influence(SimpleNamespace(own_modules=NONE))
    influence._texts.sources["train.py"] = text
    read = frozenset({"mean", "bank", "state"})
    influence._reads["train.py:1"] = NONE, SliceNames(read, read, NONE, NONE, NONE)
    place = SimpleNamespace(top=SimpleNamespace(loop=loop(), globals={}), line=line)
    return Tails(influence).behind(place, names, unknown)  # type: ignore[arg-type]


def here() -> dict[str, Any]:
    state, loss = SimpleNamespace(mean=1.0), torch.tensor([3.0], requires_grad=True)
    return {"state": state, "bank": torch.zeros(2), "at": 1, "loss": loss * 1}


def test_what_the_script_will_make_is_told_and_not_made() -> None:
    names = here()

    told = behind(names)

    assert sorted(map(str, told)) == ["('state', 'mean')", "bank"]
    assert told["state", "mean"] == 0.9 * 1.0 + 0.1 * 3.0
    assert told["bank"].tolist() == [0.0, 3.0] and not told["bank"].requires_grad
    assert (names["state"].mean, names["bank"].tolist(), names["at"]) == (1.0, [0.0, 0.0], 1)


def test_nothing_is_made_of_unknown_values() -> None:
    assert behind(here(), unknown=frozenset({("state", "mean")})) == {}
    assert behind(here(), unknown=frozenset({"watch"})) != {}


def test_what_is_not_there_yet_or_cannot_be_told_is_left_out() -> None:
    names = here()
    del names["loss"]
    large = here() | {"bank": torch.zeros(1 << 20)}

    assert behind(names) == behind(large) == {}


class Meter:
    """Its mean is of what came since it was asked for last."""

    def __init__(self) -> None:
        self.asked = 0

    def mean(self) -> float:
        self.asked += 1
        return 1.0

    item = mean
    state = property(mean)


def test_no_code_of_the_script_runs() -> None:
    meter = Meter()
    holder = here() | {"loss": meter}
    told = [behind(holder), behind(here() | {"state": type("State", (), {"mean": meter})()})]
    shadowed = TEXT.replace(b"0.1 * loss.item()", b"float(3)").replace(b"loss.detach()", b"1.0")

    assert told == [{}, {}]
    assert behind(here(), text=shadowed)
    assert behind(here() | {"float": lambda value: meter.mean()}, text=shadowed) == {}
    assert not meter.asked


def test_a_value_of_the_class_is_as_plain_as_one_of_the_object() -> None:
    state = type("State", (), {"mean": 1.0})()

    assert behind(here() | {"state": state})["state", "mean"] == 0.9 * 1.0 + 0.1 * 3.0
    assert "mean" not in vars(state)


def test_a_property_is_not_asked() -> None:
    meter = Meter()
    text = TEXT.replace(b"loss.item()", b"meter.state")

    assert behind(here() | {"meter": meter}, text=text) == {}
    assert not meter.asked


def test_where_the_backward_is_not_in_the_body_nothing_is_known() -> None:
    assert behind(here(), line=0) == {}
