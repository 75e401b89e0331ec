"""The journals of a run directory in pieces, and no other file of it."""

import os
from pathlib import Path

import pytest

from recoverrun.launcher.network import journal_desk
from recoverrun.launcher.network.journal_desk import NOTHING, following


def test_journals_come_piece_by_piece_and_then_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_desk, "PIECE_BYTES", 3)
    (tmp_path / "events.a.jsonl").write_bytes(b"12345")
    (tmp_path / "events.b.jsonl").write_bytes(b"67")
    have: dict[str, int] = {}
    held: dict[str, bytes] = {}

    while (piece := following(tmp_path, have)) != NOTHING:
        name, start, data = piece
        assert start == have.get(name, 0) and 0 < len(data) <= 3
        have[name] = start + len(data)
        held[name] = held.get(name, b"") + data

    assert held == {"events.a.jsonl": b"12345", "events.b.jsonl": b"67"}
    (tmp_path / "events.a.jsonl").write_bytes(b"123456")
    assert following(tmp_path, have) == ("events.a.jsonl", 5, b"6")


def test_stacks_of_ranks_that_stood_still_are_told_where_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "hangs" / "3").mkdir(parents=True)
    stack = tmp_path / "hangs" / "3" / "rank1.stack"
    stack.write_bytes(b"run a/b\nFile x")
    (tmp_path / "hangs" / "3" / "standing.json").write_bytes(b"no stack")
    name = "hangs/3/rank1.stack"

    assert following(tmp_path, {}) == NOTHING
    assert following(tmp_path, {}, stacks_of="a/b") == (name, 0, b"run a/b\nFile x")
    assert following(tmp_path, {name: 13}, stacks_of="a/b") == (name, 13, b"x")
    assert following(tmp_path, {name: 14}, stacks_of="a/b") == NOTHING
    assert following(tmp_path, {}, stacks_of="a/c") == NOTHING


def test_nothing_else_is_told(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"no journal")
    (tmp_path / "events.a.jsonl").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "events.b.jsonl")
    (tmp_path / "events.c.jsonl").mkdir()
    have = {"secret": 0, "../secret": 0, "events.d.jsonl": 0}

    assert following(tmp_path, have) == NOTHING
    assert following(tmp_path / "none", have) == NOTHING


@pytest.mark.parametrize("start", [-1, 6, 1 << 62, (1 << 63) - 1])
def test_an_impossible_place_in_a_journal_holds_nothing(tmp_path: Path, start: int) -> None:
    (tmp_path / "events.a.jsonl").write_bytes(b"12345")

    assert following(tmp_path, {"events.a.jsonl": start}) == NOTHING
