"""Code that is executed as another rank finds that rank's place in its environment."""

import os

import pytest

from recoverrun.worker.replay.rank_environment import as_rank


def place() -> tuple[str | None, str | None]:
    return os.environ.get("RANK"), os.environ.get("LOCAL_RANK")


@pytest.mark.parametrize(
    ("own", "local", "size", "seen"),
    [
        ("0", "0", "4", ("2", "2")),
        ("5", "1", "4", ("2", "2")),  # on the second of two nodes
        ("5", "0", "4", ("2", "0")),  # nodes are not alike: nobody knows
        ("5", "1", "", ("2", "1")),
    ],
)
def test_the_place_is_that_of_the_rank(
    own: str, local: str, size: str, seen: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", own)
    monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", size or "0")

    with pytest.raises(ZeroDivisionError), as_rank(2):
        assert place() == seen
        os.environ["RANK"] = "what the script makes of it"
        _ = 1 / 0

    assert place() == (own, local)


def test_who_was_told_no_place_is_told_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)

    with as_rank(2):
        assert place() == (None, None)
