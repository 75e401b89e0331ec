"""What the runtime keeps of the script's draws."""

from types import SimpleNamespace
from typing import Any

from recoverrun.hooks.runtime import KEPT_DRAWS, Draw, ScriptRuntime


def runtime() -> ScriptRuntime:
    made = ScriptRuntime(own_rank=0)
    made.senses = SimpleNamespace()  # type: ignore[assignment]  # only asked whether it is there
    return made


SOURCE: Any = object()


def draw(made: ScriptRuntime, *items: int) -> None:
    for item in items:
        made.drawn(SOURCE, item, item)


def test_a_whole_data_set_that_is_read_does_not_stay_in_memory() -> None:
    made = runtime()
    draw(made, *range(10 * KEPT_DRAWS))

    kept = made.draws_since(made.drawn_so_far - KEPT_DRAWS)
    assert kept is not None
    assert [one.item for one in kept] == list(range(9 * KEPT_DRAWS, 10 * KEPT_DRAWS))
    assert made.draws_since(0) is None


def test_what_is_folded_is_one_draw() -> None:
    made = runtime()
    draw(made, 1, 2)
    mark = made.drawn_so_far
    draw(made, 3, 4)
    made.fold(mark, Draw(SOURCE, 0, "both"))

    since = made.draws_since(0)
    assert since is not None
    assert [one.item for one in since] == [1, 2, "both"]
    assert made.drawn_so_far == 3
