"""Objects behind caches of `functools`: the entries of one with a bound are chained beside them."""

import functools
from typing import Any

import pytest

from recoverrun.worker.context.object_views import behind_cache


class Kept:
    pass


def cache(most: int | None) -> Any:
    @functools.lru_cache(maxsize=most)
    def made(key: int) -> Kept:
        return Kept()

    return made


@pytest.mark.parametrize("most", [None, 4])
def test_what_a_cache_keeps_is_behind_it(most: int | None) -> None:
    made = cache(most)
    kept = made(1)

    behind = behind_cache(made)
    inside = [one for part in behind if type(part) is dict for one in part.values()]

    assert any(one is kept for one in (*behind, *inside))


def test_the_dict_of_one_without_a_bound_may_be_put_back() -> None:
    assert any(1 in part for part in behind_cache(_filled(None)) if type(part) is dict)


def test_the_dict_of_one_with_a_bound_may_not() -> None:
    assert not any(1 in part for part in behind_cache(_filled(4)) if type(part) is dict)


def _filled(most: int | None) -> Any:
    made = cache(most)
    made(1)
    return made
