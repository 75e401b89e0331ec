"""The connections that are made before a script becomes another user."""

import os

import pytest

from recoverrun.worker.boot import given_up_rights


def test_all_ways_to_become_another_user_are_preceded(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    for name in given_up_rights.NAMES:
        monkeypatch.setattr(os, name, lambda *ids: done.append(ids))

    given_up_rights.watch(lambda: done.append("before"))
    os.setuid(1)
    os.seteuid(2)
    os.setreuid(3, 4)
    os.setresuid(5, 6, 7)

    assert done == ["before", (1,), "before", (2,), "before", (3, 4), "before", (5, 6, 7)]


def test_a_child_of_the_scripts_connects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(os, "setuid", lambda uid: done.append(uid))
    given_up_rights.watch(lambda: done.append("before"))
    monkeypatch.setattr(os, "getpid", lambda: -1)

    os.setuid(1)

    assert done == [1]


def test_who_is_another_user_already_connects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may go to and fro with `seteuid`: it would wait for each connection."""
    done: list[object] = []
    monkeypatch.setattr(os, "seteuid", lambda uid: done.append(uid))
    given_up_rights.watch(lambda: done.append("before"))
    first = os.geteuid()

    os.seteuid(65534)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    os.seteuid(first)
    monkeypatch.setattr(os, "geteuid", lambda: first)
    os.seteuid(65534)

    assert done == ["before", 65534, first, "before", 65534]
