"""The first node's book: any word may be lost or come twice, and strangers change nothing."""

import json

import pytest

from recoverrun.doctor.fleet_gathering import WAIT_S, Gathering, Verdict, answered, standing
from tests.unit.doctor.nodes import node

WALL = 1_790_000_000.0


@pytest.fixture
def book() -> Gathering:
    book = Gathering(wanted=3, began_at=0.0)
    book.add_first("a", node("gpu-01"), ("10.0.0.1", 5001))
    return book


def say(
    book: Gathering,
    name: str,
    *,
    calls: dict[str, str] | None = None,
    host: str = "",
    now: float = 1.0,
) -> Verdict | None:
    """A node says where it stands; the table that it is answered."""
    words = standing(node(f"gpu-{name}"), host, 6000, calls)
    return answered(book.hear(name, f"10.0.0.{name}", words, WALL, now))[1]


def peers(book: Gathering) -> dict[str, tuple[str, int]] | None:
    return answered(book.answer())[0]


def test_nobody_is_told_of_others_before_all_are_there(book: Gathering) -> None:
    say(book, "2")
    assert peers(book) is None

    say(book, "3", host="ib-3")

    assert peers(book) == {"a": ("10.0.0.1", 5001), "2": ("10.0.0.2", 6000), "3": ("ib-3", 6000)}


def test_the_table_is_there_once_all_have_called_and_all_are_told_it(book: Gathering) -> None:
    say(book, "2")
    say(book, "3")
    book.take_calls("a", {"2": "", "3": ""})
    assert say(book, "2", calls={"a": "", "3": "silent"}) is None

    last = say(book, "3", calls={"a": "", "2": ""})

    assert last is not None and not book.over
    assert last.exit_code == 83
    assert "gpu-3 is silent from gpu-2" in last.text
    assert json.loads(last.json)["exit_code"] == 83
    assert say(book, "2") == last
    assert book.over


def test_words_that_come_twice_change_nothing(book: Gathering) -> None:
    for _ in range(2):
        say(book, "2")
        say(book, "3")
        book.take_calls("a", {"2": "", "3": ""})
        say(book, "2", calls={"a": "", "3": ""})
    first = say(book, "3", calls={"a": "", "2": ""})

    assert first is not None and first.exit_code == 0
    assert say(book, "3", calls={"a": "silent", "2": ""}) == first


def test_whoever_does_not_come_is_not_waited_for_for_ever(book: Gathering) -> None:
    say(book, "2")
    book.tick(WAIT_S)
    assert peers(book) is not None
    say(book, "3", now=WAIT_S + 1)  # too late

    book.take_calls("a", {"2": ""})
    verdict = say(book, "2", calls={"a": ""}, now=WAIT_S + 2)

    assert verdict is not None
    assert "2 of 3 nodes came" in verdict.text


def test_whoever_does_not_call_is_not_waited_for_for_ever(book: Gathering) -> None:
    say(book, "2")
    say(book, "3")

    book.tick(1.0 + WAIT_S)

    assert book.verdict is not None


def test_two_nodes_may_call_themselves_alike() -> None:
    book = Gathering(wanted=2, began_at=0.0)
    book.add_first("a", node("vm"), ("h", 1))
    book.hear("b", "h", standing(node("vm"), "", 2, None), WALL, 1.0)
    book.take_calls("a", {"b": ""})

    book.take_calls("b", {"a": ""})
    book.tick(2.0)

    assert book.verdict is not None
    assert "all 2 came: vm, vm.2" in book.verdict.text


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"facts": 7, "port": 1}',
        b'{"facts": "{}", "port": 0}',
        b'{"facts": "{}", "port": "1"}',
        b'{"facts": "[]", "port": 1}',
        b"\xff" * 100,
    ],
)
def test_what_is_no_standing_is_refused(book: Gathering, text: bytes) -> None:
    with pytest.raises(ValueError):
        book.hear("x", "10.0.0.9", text, WALL, 1.0)

    assert peers(book) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"7",
        b'{"peers": {"a": ["h", 0]}}',
        b'{"peers": {"a": "h"}}',
        b'{"table": ["a", "b"]}',
        b'{"table": ["a", "b", 999]}',
    ],
)
def test_what_is_no_answer_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        answered(text)
