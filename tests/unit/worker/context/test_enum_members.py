"""Members of Enums are values wherever they are held: no owners, and never changed in place."""

import enum
from typing import Any

import pytest
from torch import nn

from recoverrun.worker.context.attached_state import Attached, is_light, is_state, noted
from recoverrun.worker.context.changed_in_place import ChangedInPlace
from recoverrun.worker.context.enum_members import is_member, member, told
from recoverrun.worker.context.module_state import TORCHS
from recoverrun.worker.context.object_members import contents, is_owner, members
from recoverrun.worker.context.slot_context import attributes_of, state_in

OWN = frozenset({__name__})


class Phase(enum.Enum):
    EVEN, ODD = 0, 1
    ALIAS = 0


class Held:
    def __init__(self) -> None:
        self.phase, self.seen = Phase.EVEN, [Phase.ODD]


class Renamed(enum.Enum):
    """Members of libraries may have a `name` of their own."""

    ONE = "one"

    @property
    def name(self) -> str:
        raise AssertionError("code of the script")


def test_a_member_is_told_by_its_class_and_name_and_is_found_by_them() -> None:
    assert told(Phase.ODD) == [__name__, "Phase", "ODD"] and is_member(Phase.ODD)
    assert member(*told(Phase.ODD)) is Phase.ODD
    assert member(*told(Phase.ALIAS)) is Phase.EVEN
    assert is_member(Renamed.ONE) and member(*told(Renamed.ONE)) is Renamed.ONE
    assert not is_member(0) and not is_member("ODD")


def test_a_module_s_own_getattr_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setitem(globals(), "__getattr__", asked.append)

    with pytest.raises(ValueError, match="no member of an Enum"):
        member(__name__, "Later", "ODD")

    assert asked == []


def test_an_object_s_attribute_is_the_member_and_not_what_is_in_it() -> None:
    held = Held()

    found = attributes_of({"held": held}, OWN)

    assert found == {("held", "phase"): Phase.EVEN, ("held", "seen"): [Phase.ODD]}
    assert not is_owner(Phase.EVEN, OWN)


def test_members_are_no_variables_of_their_class() -> None:
    assert is_owner(Phase, OWN)
    assert Phase.ODD not in state_in(contents(Phase)).values() and "ODD" not in members(Phase)


def test_a_member_that_a_model_is_given_is_followed_as_it_was_before() -> None:
    model, own = nn.Linear(1, 1), Attached()
    vars(model)["phase"] = Phase.ODD

    own.write(model, "phase", Phase.EVEN)

    assert is_state(Phase.ODD) and is_light({"phase": Phase.ODD})
    assert [before for _, _, before in own.unwritten(0)] == [Phase.EVEN]
    assert noted([Phase.ODD])[0] is Phase.ODD


def test_a_member_in_a_container_is_compared_by_what_it_is() -> None:
    reports: list[tuple[str, Any]] = []
    model = nn.Linear(1, 1)
    vars(model).update(phase=Phase.EVEN, kinds=[Phase.EVEN], same=[Phase.ODD])
    watched = ChangedInPlace(lambda _, name, before: reports.append((name, before)))
    watched.watch([model], TORCHS)

    vars(model)["phase"] = Phase.ODD
    vars(model)["kinds"][0] = Phase.ODD
    watched.look()

    assert reports == [("kinds", [Phase.EVEN])]
