"""Numbers that no run can have are not believed, whichever field they stand in."""

import json

import pytest

from rendezvous.journal.bounds import BOUNDS, NO_NUMBER, beyond
from rendezvous.journal.events import EVENTS
from rendezvous.journal.reader import parse_line
from rendezvous.journal.step_lines import StepReader
from rendezvous.protocol.records import Json


def test_every_field_of_every_event_has_its_bound() -> None:
    fields = {name for event in EVENTS.values() for name in (*event.required, *event.optional)}

    assert fields <= BOUNDS.keys()


@pytest.mark.parametrize("name", [name for name, bound in BOUNDS.items() if bound != NO_NUMBER])
@pytest.mark.parametrize("place", ["plain", "list", "dict"])
def test_a_number_beyond_is_found_wherever_it_is(name: str, place: str) -> None:
    least, most = BOUNDS[name]

    for number in (most + 1, least - 1, 10**300):
        values: dict[str, Json] = {
            "plain": number, "list": [0, [0, number]], "dict": {"1": [[0, number]]}
        }  # fmt: skip
        assert beyond({"a": "text", name: values[place]}).startswith(f"{name} ")
    assert beyond({name: [least, most]}) == ""


def test_a_key_that_is_no_number_of_a_replica_is_found() -> None:
    assert beyond({"quota": {"9" * 5000: 1}}).startswith("quota of 999")
    assert beyond({"quota": {"12": 1, "a long word that is no number": 1}}) == ""


def test_fields_of_a_newer_version_may_hold_what_can_be_counted_with() -> None:
    assert beyond({"of_tomorrow": [1 << 52, True, 1.5, None]}) == ""
    assert beyond({"of_tomorrow": 1 << 60}) != ""


def test_the_line_is_skipped_and_says_why() -> None:
    line = {"v": 1, "ts": 1.0, "seq": 0, "ev": "step.commit", "total": 4_000_000_000_000}

    entry, why = parse_line(json.dumps(line).encode(), "n1", StepReader())

    assert entry is None
    assert why == "a number that no run can have: total 4000000000000"
