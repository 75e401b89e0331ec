"""The register in etcd, call by call: what it asks for next, and what it makes of no answer."""

from rendezvous.consensus import timeouts
from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.etcd_api import (
    TTL_S,
    Answer,
    Call,
    Decide,
    Failed,
    Grant,
    Look,
    Renew,
    Stand,
)
from rendezvous.consensus.etcd_register import LeasedRegister
from rendezvous.consensus.register_events import (
    Answered,
    Cut,
    Effect,
    Enrolled,
    Heard,
    Part,
    Request,
    Tick,
)
from rendezvous.protocol.heartbeat import QUICK
from tests.sim.views.shelf import Shelf

FIRST = Configuration(1, 1, ("a", "b"), "etcd/a")
REFUSED = Failed("connection refused")


class Launcher:
    """One of them, in front of an etcd that can be switched off."""

    def __init__(self, own: str) -> None:
        self.now = 0.0
        self.shelf = Shelf(0, "etcd")
        self.machine = LeasedRegister(own=own, configuration=FIRST, now=0.0)
        self.calls: list[Call] = []
        self.others: list[Effect] = []
        self.waiting: list[Request] = []

    def step(self, event: Answered | Heard | Part | Tick) -> None:
        for effect in self.machine.step(event, self.now):
            if isinstance(effect, Request):
                self.calls.append(effect.call)
                self.waiting.append(effect)
            else:
                self.others.append(effect)

    def answer(self, answer: Answer | None = None) -> Call:
        """The oldest request is answered: by the etcd, or so."""
        request = self.waiting.pop(0)
        given = self.shelf.perform(request.call, self.now) if answer is None else answer
        self.step(Answered(request.serial, given))
        return request.call

    def run(self, span_s: float, answer: Answer | None = None) -> None:
        until = self.now + span_s
        while self.now < until:
            while self.waiting:
                self.answer(answer)
            self.now += 0.05
            self.step(Tick(0.5))


def _leader() -> Launcher:
    launcher = Launcher("a")
    launcher.step(Tick(0.5))
    launcher.run(1.0)
    assert launcher.machine.leads
    return launcher


def test_the_founder_looks_takes_a_lease_stands_and_writes_what_it_knows() -> None:
    launcher = _leader()

    first = launcher.calls[:4]
    assert first[:2] == [Look(), Grant(TTL_S)]
    assert isinstance(first[2], Stand) and isinstance(first[3], Decide)
    assert {type(call) for call in launcher.calls[4:]} == {Renew}
    assert launcher.shelf.configuration is not None and launcher.shelf.configuration[0] == FIRST


def test_an_etcd_that_refuses_at_once_is_asked_twice_a_second() -> None:
    launcher = _leader()
    launcher.step(Part("b"))
    launcher.calls.clear()

    launcher.run(5.0, REFUSED)

    assert 8 <= len(launcher.calls) <= 12
    assert {type(call) for call in launcher.calls} == {Decide}
    assert launcher.machine.undecided


def test_a_decision_whose_answer_was_lost_is_found() -> None:
    launcher = _leader()
    while launcher.waiting:
        launcher.answer()
    launcher.step(Part("b"))
    (request,) = launcher.waiting
    assert isinstance(request.call, Decide)
    launcher.shelf.perform(request.call, launcher.now)
    launcher.answer(Failed("timed out"))

    launcher.run(1.5)

    assert [e.configuration.number for e in launcher.others if isinstance(e, Enrolled)] == [2]
    assert launcher.machine.configuration.members == ("a",)
    assert not launcher.machine.undecided


def test_a_lease_that_has_lapsed_is_followed_by_another() -> None:
    launcher = _leader()
    before = launcher.machine.claim

    launcher.run(4.0, REFUSED)
    assert not launcher.machine.leased(launcher.now)
    launcher.run(2.0)

    assert launcher.machine.leads and launcher.machine.claim > before
    assert launcher.machine.leased(launcher.now)


def test_a_leader_with_nothing_to_decide_needs_no_etcd_and_one_with_a_loss_gives_up() -> None:
    launcher = _leader()
    pong = launcher.machine.configuration

    def heard(span_s: float) -> None:
        until = launcher.now + span_s
        while launcher.now < until:
            launcher.machine.peers.hear("b")
            launcher.run(0.5, REFUSED)

    heard(30.0)
    assert launcher.machine.configuration == pong
    assert not [effect for effect in launcher.others if isinstance(effect, Cut)]

    launcher.run(QUICK.silent_s + timeouts.FENCE_S + 2.0, REFUSED)
    (cut,) = [effect for effect in launcher.others if isinstance(effect, Cut)]
    assert "etcd gave no help: connection refused" in cut.reason


def test_who_is_not_settled_does_not_stand() -> None:
    launcher = Launcher("b")
    launcher.machine.settled = False

    launcher.run(9.0)

    assert {type(call) for call in launcher.calls} == {Look}
