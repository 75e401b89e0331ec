"""The script gets as many items of its generator as it would have, whoever else gets some."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from recoverrun.worker.data.owed_items import READ_AHEAD, OwedItems
from recoverrun.worker.rng.streams import read_streams


def numbers(count: int = 5) -> Iterator[torch.Tensor]:
    for number in range(count):
        yield torch.tensor(number)


def cuts() -> Iterator[float]:
    torch.rand(3)
    for _ in range(5):
        yield torch.rand(1).item()


class Script:
    """A loop over the items."""

    def __init__(self, items: OwedItems) -> None:
        self.items, self.count = items, 0

    def __next__(self) -> Any:
        item = self.items.own(self.count, None)
        self.count += 1
        return item

    def __iter__(self) -> Iterator[Any]:
        return self


def drawn(item: object) -> bool:
    return isinstance(item, float)


def test_other_data_are_read_ahead_and_come_in_their_turn() -> None:
    script = Script(OwedItems(numbers(), None))
    next(script)

    ahead = [script.items.ahead(script.count).item() for _ in range(2)]

    assert ahead == [1, 2]
    assert [item.item() for item in script] == [1, 2, 3, 4]


def test_what_is_done_to_other_data_is_not_done_to_the_scripts() -> None:
    script = Script(OwedItems(numbers(), None))

    script.items.ahead(0).add_(7)

    assert next(script).item() == 0


def test_no_more_than_a_few_are_read_ahead() -> None:
    items = OwedItems(numbers(100), None)

    ahead = [items.ahead(0).item() for _ in range(READ_AHEAD + 1)]

    assert ahead == [*range(READ_AHEAD), 0]


def test_at_the_end_the_last_one_is_given_again_and_then_none() -> None:
    script = Script(OwedItems(numbers(1), None))

    assert [script.items.ahead(0).item() for _ in range(2)] == [0, 0]
    assert len(list(script)) == 1
    with pytest.raises(StopIteration):
        script.items.ahead(script.count)


def test_an_error_comes_where_the_script_asks_for_that_item() -> None:
    def breaks() -> Iterator[int]:
        yield 1
        raise ValueError("bad file")

    script = Script(OwedItems(breaks(), None))
    assert [script.items.ahead(0) for _ in range(2)] == [1, 1]

    assert next(script) == 1
    with pytest.raises(ValueError, match="bad file"):
        next(script)


def test_what_other_ranks_got_is_owed() -> None:
    script = Script(OwedItems(cuts(), cuts))
    given = [next(script)]

    for index in range(3):
        script.items.of_another(script.count, index, None)

    assert len([*given, *script]) == 5
    with pytest.raises(StopIteration):
        next(script)


def test_another_rank_gets_items_as_long_as_the_script_does() -> None:
    script = Script(OwedItems(cuts(), cuts))

    for index in range(5):
        next(script)
        assert drawn(script.items.of_another(script.count, index, None))

    with pytest.raises(StopIteration):
        script.items.of_another(script.count, 5, None)


def test_what_is_owed_draws_no_more_than_what_it_stands_for() -> None:
    torch.manual_seed(2)
    torch.rand(3)
    alone = torch.rand(5).double().tolist()
    torch.manual_seed(2)
    script = Script(OwedItems(cuts(), cuts))
    next(script)

    for index in range(3):
        before = read_streams()
        script.items.of_another(script.count, index, None)
        torch.set_rng_state(torch.frombuffer(bytearray(before.torch_cpu), dtype=torch.uint8))

    assert list(script) == pytest.approx(alone[1:])


def test_without_another_call_the_end_is_an_end() -> None:
    script = Script(OwedItems(numbers(3), None))

    script.items.of_another(0, 0, None)

    assert len(list(script)) == 2


def test_a_script_that_closes_its_generator_is_owed_nothing() -> None:
    script = Script(OwedItems(cuts(), cuts))
    next(script)
    script.items.of_another(script.count, 0, None)
    script.items.ahead(script.count)

    script.items.close()

    assert list(script) == []
