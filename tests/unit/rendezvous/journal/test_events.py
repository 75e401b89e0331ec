"""The table of what a journal records."""

from rendezvous.journal.events import EVENTS


def test_every_event_has_a_meaning_and_a_name_of_two_words() -> None:
    for name, event in EVENTS.items():
        assert name.count(".") == 1, name
        assert event.meaning.endswith("."), name
