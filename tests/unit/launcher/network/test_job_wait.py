"""The lines of a launcher that waits for a place."""

import signal
from collections.abc import Callable
from typing import cast

import pytest

from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network import job_wait
from recoverrun.launcher.network.connections import Connections
from recoverrun.launcher.network.job_wait import JobWait
from recoverrun.launcher.network.key_lookup import Keyring
from recoverrun.launcher.node.signals import SignalInbox
from rendezvous.membership.formation import TELL_AFTER_S
from rendezvous.protocol.exit_codes import ExitCode


class Unknown:
    """A lookup that finds no address for `names`."""

    names = ("head",)
    unanswered: frozenset[str] = frozenset()

    def __init__(self, _endpoints: object) -> None:
        self.unknown = list(self.names)

    def wait(self, _seconds: float) -> list[str]:
        return self.unknown

    def end(self) -> None:
        pass


class Slow(Unknown):
    """A name service that answers at the third look."""

    def __init__(self, endpoints: object) -> None:
        super().__init__(endpoints)
        self.unanswered = frozenset(self.names)
        self._looks = 0

    def wait(self, _seconds: float) -> list[str]:
        self._looks += 1
        if self._looks == 3:
            self.unknown, self.unanswered = [], frozenset()
        return self.unknown


class Signals:
    """The signals of a user: `number`, or none."""

    def __init__(self, number: signal.Signals | None = None) -> None:
        self._number = number

    def stopper(self) -> signal.Signals | None:
        return self._number


def _config(rank: int, endpoint: str = "head:29500") -> RunConfig:
    line = f"--nnodes 2 --node-rank {rank} --rdzv-endpoint {endpoint} train.py"
    options = read(line.split(), {})
    assert options is not None
    return parse_options(options, {})


def _waits(config: RunConfig) -> list[str]:
    said: list[str] = []
    JobWait(config, said.append, 0.0).look_up(cast(SignalInbox, Signals()))
    return said


def test_a_name_that_nobody_knows_ends_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_wait, "NameLookup", Unknown)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(RecoverrunError, match="no address is known for head: is the") as error:
        _waits(_config(1))

    assert error.value.exit_code == ExitCode.NEVER_FORMED


def test_a_name_service_that_is_slow_is_told_and_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_wait, "NameLookup", Slow)

    assert _waits(_config(1)) == [
        "waiting for the first node: the name service does not answer for head yet, 597 s left"
    ]


def test_who_waits_for_a_name_service_may_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_wait, "NameLookup", Slow)
    waiting = JobWait(_config(1), lambda line: None, 0.0)

    with pytest.raises(RecoverrunError, match="SIGINT was sent") as error:
        waiting.look_up(cast(SignalInbox, Signals(signal.SIGINT)))

    assert error.value.exit_code == ExitCode.INTERRUPTED


def test_in_a_pod_it_is_told_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_wait, "NameLookup", Unknown)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

    assert _waits(_config(1)) == [
        "waiting for the first node: no address is known for head yet, 600 s left"
    ]


def test_one_known_name_of_several_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_wait, "NameLookup", Unknown)

    assert _waits(_config(1, "head:29500,other:29500")) == []


def test_who_must_serve_is_told_of_another_one_that_serves_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_wait, "is_rendezvous", lambda place: place.host == "head")

    (line,) = _waits(_config(0, "other:29500,head:29500"))

    assert line.startswith("! another launcher answers at head:29500 already: does another node")


def test_the_node_that_must_serve_need_not_know_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_wait, "NameLookup", Unknown)
    monkeypatch.setattr(job_wait, "is_rendezvous", lambda _place: False)

    assert _waits(_config(0)) == []


class Unanswered:
    """Connections of a launcher that nobody has answered yet."""

    acquainted = False

    @property
    def uplink(self) -> "Unanswered":
        return self

    def new_strangers(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("mute", "words"),
    [
        ("", "nobody answers at head:29500 yet"),
        ("head:29500", "what listens at head:29500 says nothing yet"),
    ],
)
def test_who_waits_is_told_whether_anything_listens_there(
    mute: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_wait, "mute", lambda _endpoints: mute)
    said: list[str] = []

    JobWait(_config(1), said.append, 0.0).give_up(
        cast(Connections, Unanswered()), Keyring(), 2 * TELL_AFTER_S
    )

    assert said == [f"waiting for the first node: {words}, {600 - 2 * TELL_AFTER_S:.0f} s left"]


LEFT_OUT = "node b was silent for so long"


def _left_out(monkeypatch: pytest.MonkeyPatch, *, ended: tuple[str, ...]) -> Callable[[float], str]:
    """The words with which a launcher that was left out at 0 s ends, if hosts say that launchers
    there `ended`.
    """
    monkeypatch.setattr(job_wait, "has_ended", lambda place: place.host in ended)
    wait = JobWait(_config(1, "10.0.0.1:29500,10.0.0.2:29500"), lambda _: None, 0.0, LEFT_OUT)

    def told(at: float) -> str:
        try:
            wait.give_up(cast(Connections, Unanswered()), Keyring(), at)
        except RecoverrunError as error:
            assert error.exit_code == ExitCode.PARTITIONED
            return str(error)
        return ""

    return told


def test_who_was_left_out_of_a_job_that_is_over_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = _left_out(monkeypatch, ended=("10.0.0.1", "10.0.0.2"))

    assert told(0.1) == f"{LEFT_OUT}; none of the others is left to ask for a place"


def test_who_was_left_out_asks_as_long_as_one_of_the_others_may_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = _left_out(monkeypatch, ended=("10.0.0.1",))

    assert told(0.1) == told(599.0) == ""
    assert told(600.0) == f"{LEFT_OUT}; none of the others has answered for 600 s"


def test_at_the_beginning_nobody_who_refuses_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_wait, "has_ended", lambda place: True)
    wait = JobWait(_config(1), lambda _: None, 0.0)

    wait.give_up(cast(Connections, Unanswered()), Keyring(), 1.0)
