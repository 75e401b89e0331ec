"""Dicts are told by their kinds, and a factory of the script's apart from them."""

from collections import Counter, OrderedDict, defaultdict
from typing import Any

import pytest

from recoverrun.worker.arrival import dict_kinds


def ones() -> int:
    return 1


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (Counter(a=1), "Counter()"),
        (OrderedDict(a=1), "OrderedDict()"),
        (defaultdict(list, a=[1]), "defaultdict(<class 'list'>, {})"),
        (defaultdict(ones, a=1), "defaultdict(None, {})"),
        (defaultdict(None, a=1), "defaultdict(None, {})"),
    ],
)
def test_an_empty_one_has_the_kind_and_no_function_of_the_scripts(one: Any, text: str) -> None:
    assert repr(dict_kinds.empty(one)) == text


def test_a_factory_is_given_once_its_dict_is_there() -> None:
    path, held = dict_kinds.factory_of("meter.counts"), {"meter.counts": defaultdict(None, a=5)}
    rows: list[list[Any]] = [["meter.best", "x"], [path, "default_factory"]]
    factories, others = dict_kinds.apart(rows)

    dict_kinds.give(held, factories[0][0], ones)
    dict_kinds.give(held, dict_kinds.factory_of("gone"), ones)

    assert others == [["meter.best", "x"]]
    assert (held["meter.counts"]["a"], held["meter.counts"]["new"]) == (5, 1)


def test_another_kind_is_given_where_it_is_held() -> None:
    around: dict[str, Any] = {"counts": {"a": 1}}

    made = dict_kinds.of_kind(around["counts"], Counter(), around, "counts")

    assert made is around["counts"] and made == Counter(a=1) and type(made) is Counter
    assert type(dict_kinds.of_kind({"a": 1}, Counter(), None, "counts")) is dict
