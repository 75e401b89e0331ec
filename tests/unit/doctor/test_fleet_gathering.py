"""The first node's book: any word may be lost or come twice, and strangers change nothing."""

import json
from typing import Any

import pytest

from recoverrun.doctor.clock_rate import Rate
from recoverrun.doctor.fleet_gathering import (
    WAIT_S,
    FleetGathering,
    FleetVerdict,
    NodeStanding,
    answered,
    standing,
)
from rendezvous.protocol.exit_codes import ExitCode
from tests.unit.doctor.nodes import node

WALL = 1_790_000_000.0
MARK = ".doctor.0123456789abcdef"
EVEN = Rate(0.999, 1.001)


@pytest.fixture
def book() -> FleetGathering:
    book = FleetGathering(wanted=3, began_at=0.0, mark=MARK)
    book.add_first("a", node("gpu-01"), ("10.0.0.1", 5001))
    return book


def say(
    book: FleetGathering,
    name: str,
    *,
    calls: dict[str, str] | None = None,
    host: str = "",
    now: float = 1.0,
    rate: Rate | None = EVEN,
    shares: bool | None = True,
    has_table: bool = False,
) -> FleetVerdict | None:
    """A node says where it stands; the table that it is answered."""
    said = NodeStanding(
        host=host, port=6000, wall_s=WALL, said_s=7.5, calls=calls, rate=rate, shares=shares,
        has_table=has_table,
    )  # fmt: skip
    answer = answered(
        book.hear(name, f"10.0.0.{name}", standing(node(f"gpu-{name}"), said), WALL, now)
    )
    assert (answer.said_s, answer.stamped_s) == (7.5, now)
    return answer.verdict


def peers(book: FleetGathering) -> dict[str, tuple[str, int]] | None:
    return answered(book.answer()).peers


def test_nobody_is_told_of_others_before_all_are_there(book: FleetGathering) -> None:
    say(book, "2")
    assert peers(book) is None

    say(book, "3", host="ib-3")

    assert peers(book) == {"a": ("10.0.0.1", 5001), "2": ("10.0.0.2", 6000), "3": ("ib-3", 6000)}


def test_the_table_is_there_once_all_have_called_and_all_are_told_it(book: FleetGathering) -> None:
    say(book, "2")
    say(book, "3")
    book.take_calls("a", {"2": "", "3": ""})
    assert say(book, "2", calls={"a": "", "3": "silent"}) is None

    last = say(book, "3", calls={"a": "", "2": ""})

    assert last is not None and not book.over
    assert last.exit_code == ExitCode.DOCTOR
    assert "gpu-3 (10.0.0.3) is silent from gpu-2" in last.text
    assert json.loads(last.json)["exit_code"] == 83
    assert say(book, "2") == last
    assert not book.over  # The answer may not have come.
    for name in ("2", "3"):
        say(book, name, has_table=True)
    assert book.over


@pytest.mark.parametrize("missing", [{"rate": None}, {"shares": None}])
def test_the_table_waits_for_all_that_nodes_have_to_tell(
    book: FleetGathering, missing: dict[str, Any]
) -> None:
    book.take_calls("a", {})
    for name in ("2", "3"):
        say(book, name, **missing)
        assert say(book, name, calls={}, **missing) is None

    assert say(book, "2") is None
    assert say(book, "3") is not None


def test_a_clock_that_goes_wrong_and_a_run_directory_of_its_own_are_told(
    book: FleetGathering,
) -> None:
    book.take_calls("a", {})
    say(book, "2", calls={}, rate=Rate(1.019, 1.021))
    verdict = say(book, "3", calls={}, shares=False)

    assert verdict is not None and verdict.exit_code == ExitCode.DOCTOR
    assert "clocks go at another rate: while the first node's goes 1 s, gpu-2 1.019 s" in (
        verdict.text
    )
    assert "gpu-3 do not see the run directory of the first node" in verdict.text


def test_words_that_come_twice_change_nothing(book: FleetGathering) -> None:
    for _ in range(2):
        say(book, "2")
        say(book, "3")
        book.take_calls("a", {"2": "", "3": ""})
        say(book, "2", calls={"a": "", "3": ""})
    first = say(book, "3", calls={"a": "", "2": ""})

    assert first is not None and first.exit_code == 0
    assert say(book, "3", calls={"a": "silent", "2": ""}) == first


def test_whoever_does_not_come_is_not_waited_for_for_ever(book: FleetGathering) -> None:
    say(book, "2")
    book.tick(WAIT_S)
    assert peers(book) is not None
    say(book, "3", now=WAIT_S + 1)  # too late

    book.take_calls("a", {"2": ""})
    verdict = say(book, "2", calls={"a": ""}, now=WAIT_S + 2)

    assert verdict is not None
    assert "2 of 3 nodes came" in verdict.text


def test_whoever_does_not_call_is_not_waited_for_for_ever(book: FleetGathering) -> None:
    say(book, "2")
    say(book, "3")

    book.tick(1.0 + WAIT_S)

    assert book.verdict is not None


def test_two_nodes_may_call_themselves_alike() -> None:
    book = FleetGathering(wanted=2, began_at=0.0)
    book.add_first("a", node("vm"), ("h", 1))
    said = NodeStanding(host="", port=2, wall_s=WALL, said_s=0.0, rate=EVEN, shares=False)
    book.hear("b", "h", standing(node("vm"), said), WALL, 1.0)
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
        b'{"facts": 7, "port": 1, "wall_s": 0, "said_s": 0}',
        b'{"facts": "{}", "port": 0, "wall_s": 0, "said_s": 0}',
        b'{"facts": "{}", "port": "1", "wall_s": 0, "said_s": 0}',
        b'{"facts": "[]", "port": 1, "wall_s": 0, "said_s": 0}',
        b'{"facts": "{}", "port": 1, "wall_s": "0", "said_s": 0}',
        b'{"facts": "{}", "port": 1, "wall_s": 0, "said_s": 0, "rate": [1, NaN]}',
        b"\xff" * 100,
    ],
)
def test_what_is_no_standing_is_refused(book: FleetGathering, text: bytes) -> None:
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
