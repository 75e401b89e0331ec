"""Views of what classes and functions hold, all of it at one moment."""

from collections.abc import Callable
from enum import Enum
from typing import Any

from recoverrun.worker.context.member_views import (
    MOST_ITEMS,
    Free,
    Items,
    MemberView,
    Shared,
    Slots,
)


class _Kind:
    seen = 3
    names = ["a"]
    inner = int
    seat: "_Kind | None" = None

    @property
    def half(self) -> float:
        return self.seen / 2

    @classmethod
    def made(cls) -> "_Kind":
        return cls()


class _Phase(Enum):
    WARM = 1
    RUN = 2


class _AnswersAll:
    """Has every attribute, as seen from outside."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


class _Slotted:
    __slots__ = ("first", "second")


class _Counted(MemberView):
    """Counts how often it is gone over."""

    def __init__(self) -> None:
        self.times = 0

    def __iter__(self) -> Any:
        self.times += 1
        yield from ("a", "gone")

    def __getitem__(self, name: str) -> int:
        if name == "gone":
            raise KeyError(name)
        return 1

    def __setitem__(self, name: str, value: Any) -> None:
        raise AssertionError(name)

    def __delitem__(self, name: str) -> None:
        raise AssertionError(name)


def test_variables_of_a_class_are_its_data_alone() -> None:
    view = Shared(_Kind)

    assert view.now() == dict(view) == {"seen": 3, "names": ["a"], "seat": None}
    assert [name for name in ("seen", "half", "made", "inner", "none") if name in view] == ["seen"]


def test_members_of_an_enum_are_no_variables_and_what_is_held_is_asked_nothing() -> None:
    class Holder:
        phase = _Phase.WARM
        proxy = _AnswersAll()

    assert not any(isinstance(one, _Phase) for one in Shared(_Phase).now().values())
    assert Shared(Holder).now() == {"phase": _Phase.WARM, "proxy": Holder.proxy}


def test_free_variables_without_a_value_are_left_out() -> None:
    def around(given: int) -> Callable[[], int]:
        def inside() -> int:
            return given + later

        inside.__dict__["calls"] = 2
        if given < 0:
            later = 1
        return inside

    assert Free(around(1)).now() == {"given": 1, "calls": 2}  # type: ignore[arg-type]
    assert Free(around(-1)).now() == dict(Free(around(-1)))  # type: ignore[arg-type]


def test_a_view_is_gone_over_once_for_what_it_holds_now() -> None:
    view, slotted = _Counted(), _Slotted()
    slotted.second = 2

    assert (view.now(), view.times) == ({"a": 1}, 1)
    assert Slots(slotted, _Slotted.__slots__).now() == {"second": 2}


def test_items_are_members_and_stay_what_they_are() -> None:
    held = [_Slotted(), _Slotted()]
    items = Items(held)

    items["[0]"] = None
    del items["[1]"]

    assert dict(items) == {"[0]": held[0], "[1]": held[1]} and len(held) == 2
    assert "[2]" not in items and len(Items([0] * (MOST_ITEMS + 1))) == MOST_ITEMS
