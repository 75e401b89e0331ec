"""Places that hold the same list or object do so in another process, too."""

from types import SimpleNamespace
from typing import Any

from recoverrun.worker.context.object_graph import Holdings, holdings
from recoverrun.worker.snapshots import shared_objects

OWN = frozenset({__name__})


class Episode:
    def __init__(self) -> None:
        self.rewards: list[float] = []


def there(one: Any) -> Holdings:
    return holdings([{"one": one}], OWN)


def test_a_list_that_was_made_meanwhile_is_the_last_one_again() -> None:
    rows = [[1.0], [2.0]]
    first = SimpleNamespace(rows=rows, now=rows[-1], other=[2.0])
    second = SimpleNamespace(rows=[[1.0], [2.0]], now=[2.0], other=[2.0])

    shared_objects.put(shared_objects.told(there(first), [], OWN), there(second), [], OWN)

    assert second.now is second.rows[-1] and second.other is not second.now


def test_a_variable_holds_the_object_of_an_attribute() -> None:
    episode, mine, other = Episode(), Episode(), Episode()
    told = shared_objects.told(
        there(SimpleNamespace(now=episode)), [("<train>", {"episode": episode})], OWN
    )
    second = there(SimpleNamespace(now=mine))

    anew = shared_objects.put(told, second, [("<train>", {"episode": other})], OWN)

    assert anew == [("<train>", "episode", mine)]
