"""Entries of dicts by the text of their keys, and the order of the keys."""

import math
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recoverrun.worker.context.member_views import (
    ORDER,
    Entries,
)
from recoverrun.worker.context.object_members import (
    members,
)
from tests.unit.worker.context.test_object_members import Plain


@given(
    st.dictionaries(
        st.one_of(st.text(), st.integers(), st.none(), st.floats(-1e300, 1e300)), st.integers()
    )
)
def test_entries_go_by_the_text_of_their_keys(entries: dict[Any, int]) -> None:
    held = Entries(entries)

    assert held[ORDER] == list(entries)
    assert [held[f"[{key!r}]"] for key in entries] == list(entries.values())
    assert list(held) == [ORDER, *(f"[{key!r}]" for key in entries)]


@given(st.data())
def test_an_order_puts_keys_back_and_drops_those_that_it_lacks(data: st.DataObject) -> None:
    owner = {key: object() for key in "abcde"}
    before = dict(owner)
    saved = dict(members(owner))
    for key in data.draw(st.permutations("abcdefg")):
        owner.pop(key, None)
        if data.draw(st.booleans()):
            owner[key] = object()

    members(owner).update(saved)

    assert list(owner) == list(before)
    assert all(owner[key] is value for key, value in before.items())


def test_new_keys_of_an_order_hold_nothing_until_they_are_given_something() -> None:
    owner = {"a": 1, "b": 2}

    members(owner)[ORDER] = ["c", "b"]

    assert list(owner.items()) == [("c", None), ("b", 2)]


def test_a_dict_of_defaults_stays_one() -> None:
    owner: dict[str, list[int]] = defaultdict(list, a=[1])

    members(owner)[ORDER] = ["b", "a"]

    assert owner["new"] == [] and owner["a"] == [1]


@pytest.mark.parametrize("key", [(1, 2), b"x", frozenset(), Plain])
def test_entries_with_other_keys_are_not_there_and_neither_is_the_order(key: Any) -> None:
    owner = {"a": 1, key: 2}

    assert dict(members(owner)) == {"['a']": 1}
    members(owner).clear()
    assert owner == {key: 2}


@pytest.mark.parametrize("name", ["a", "", "a]"])
def test_what_is_no_text_of_a_key_names_no_entry(name: str) -> None:
    assert name not in members({"a": 1})


def test_an_order_cannot_be_deleted_and_absent_entries_may_be() -> None:
    owner = {"a": 1}

    del members(owner)[ORDER], members(owner)["['b']"]

    assert owner == {"a": 1}


@pytest.mark.parametrize("key", [math.inf, -math.inf, math.nan])
def test_a_key_that_is_no_finite_number_is_no_error(key: float) -> None:
    dict(members({"a": 1, key: 2}))


@pytest.mark.parametrize("name", ["['a']#", "['b']", "a", "["])
def test_what_names_no_entry_is_not_there(name: str) -> None:
    """A mark of a large one, say."""
    assert members({"a": 1}).get(name) is None


@pytest.mark.parametrize("kind", [int, dict])
def test_asking_for_an_entry_does_not_make_one(kind: Any) -> None:
    owner: dict[str, Any] = defaultdict(kind)

    found = members(owner).get("['a']")

    assert found is None and not owner
