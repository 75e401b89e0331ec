"""Names that are not known, or not yet. No name is really looked up."""

import socket
import threading

import pytest

from recoverrun.config.option_values import Endpoint
from recoverrun.launcher.network.name_lookup import NameLookup, names_may_come

HEAD = (Endpoint(host="head", port=29400),)


def test_a_name_that_comes_to_be_known_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([OSError("not yet"), OSError("not yet"), None])

    def getaddrinfo(host: str, *_args: object, **_options: object) -> list[str]:
        if (error := next(answers)) is not None:
            raise error
        return [host]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    lookup = NameLookup(HEAD)
    assert lookup.wait(30.0) == []
    assert not lookup.unanswered


def test_a_lookup_that_does_not_end_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def getaddrinfo(*_args: object, **_options: object) -> list[str]:
        answered.wait(30.0)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    lookup = NameLookup(HEAD)
    assert lookup.wait(0.01) == ["head"]
    assert lookup.unanswered == {"head"}
    lookup.end()
    answered.set()


def test_in_a_pod_names_may_come() -> None:
    assert names_may_come({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert not names_may_come({"SLURM_JOB_ID": "7"})
