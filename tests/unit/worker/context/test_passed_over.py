"""Parts that are passed over are known by their names, and by who holds them."""

import pytest

from recoverrun.worker.context.passed_over import NOTHING, PassedOver


class Own:
    pass


class Extended(dict[str, int]):
    pass


PASSED = PassedOver(
    frozenset({"writer"}),
    frozenset({"best"}),
    frozenset({("log", "file")}),
    frozenset({__name__}),
)


@pytest.mark.parametrize(
    ("path", "key", "owner", "lies"),
    [
        ("tracker", "best", Own, True),
        ("tracker", "best", Extended, False),
        ("tracker", "best", Exception, False),
        ("tracker", "file", Own, False),
        ("trainer.log", "file", None, True),
        ("log", "file", None, True),
        ("log", "best", None, False),
        ("logs[0]", "file", None, False),
    ],
)
def test_an_attribute_lies_in_objects_of_the_scripts_classes_alone(
    path: str, key: str, owner: type | None, lies: bool
) -> None:
    assert PASSED.lies_at(path, key, owner) is lies


@pytest.mark.parametrize(
    ("key", "lies"),
    [
        ("writer", True),
        (("writer", "rows"), True),
        (("tracker", "best", "loss"), True),
        (("best", "loss"), False),
        (("log", "['file']", "name"), True),
        (("log", "['other']"), False),
    ],
)
def test_a_value_hangs_on_what_is_on_its_way(key: str | tuple[str, ...], lies: bool) -> None:
    assert PASSED.lies_on(key) is lies
    assert not NOTHING.lies_on(key)
