"""A disk that stalls costs a moment, and only once."""

import threading

import pytest

from recoverrun.launcher.output.patience import Patience

PATIENCE_S = 30.0


def test_what_comes_in_time_is_given() -> None:
    patience = Patience[str](PATIENCE_S)

    assert patience.ask(lambda: "found", "nothing") == "found"
    assert patience.ask(lambda: "again", "nothing") == "again"


def test_while_one_call_hangs_no_other_is_made() -> None:
    patience = Patience[str](0.01)
    hung, asked = threading.Event(), []

    def hang() -> str:
        assert hung.wait(PATIENCE_S), "nobody let it go"
        return "late"

    def ask() -> str:
        asked.append(1)
        return "found"

    assert patience.ask(hang, "nothing") == "nothing"
    assert patience.ask(ask, "nothing") == "nothing"
    assert not asked
    hung.set()


@pytest.mark.usefixtures("no_threads")
def test_where_there_is_no_thread_the_call_is_made_all_the_same() -> None:
    assert Patience[str](0.0).ask(lambda: "found", "nothing") == "found"
