"""In which order a member stops for others, packs its state for one of them, and goes on."""

import threading
from types import SimpleNamespace
from typing import Any, Never

import pytest

from recoverrun.worker.arrival import survivor
from recoverrun.worker.arrival.published import unpacked_word
from recoverrun.worker.arrival.state_wire import Address
from recoverrun.worker.arrival.survivor import Survivor
from recoverrun.worker.errors import NotReachable
from rendezvous.protocol.arrival_messages import REFUSE_RETURN, Held
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.views import View

HERE, LOST = 0, 2
LAYOUT = Layout(((0,), (1,), (2,)))
BEFORE = View(generation=4, live=(0, 1), live_ranks=(0, 1), losses=())
AFTER = View(generation=5, live=(0, 1, 2), live_ranks=(0, 1, 2), losses=(), joined=(2,))
ADDRESS = Address("127.0.0.1", 7, b"token")


class Waits:
    def on(self, *_: object) -> "Waits":
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Standing:
    """A member at the top of step 9; the view with the newcomer begins as soon as it is held."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self.words: dict[str, Any] = {}
        self.view = BEFORE
        self.machine = SimpleNamespace(view=BEFORE, held=self.held)
        link = SimpleNamespace(send=self.hear)
        self.worker: Any = SimpleNamespace(
            env=SimpleNamespace(rank=HERE), step=9, invited=(LOST,), joined=(LOST,), joining=True,
            changed=threading.Condition(), link=link, failpoints=self, reporter=self,
            store=lambda _: SimpleNamespace(set=self.told), runtime=None,
            protection=SimpleNamespace(
                machine=self.machine, layout=LAYOUT, strategy=SimpleNamespace(admit=lambda: None),
                fabric=SimpleNamespace(waits=Waits()),
            ),
        )  # fmt: skip
        left = SimpleNamespace(
            exact=True, renew=lambda _: self.did.append("renewed"), stay=lambda _: None
        )
        executor = SimpleNamespace(lost={}, captures=None)
        self.parts: Any = SimpleNamespace(worker=self.worker, left=left, executor=executor)
        record: Any = SimpleNamespace(pack=lambda _: b"")
        self.survivor = Survivor(self.parts, record)
        patch.setattr(survivor, "standing", lambda *_, **__: SimpleNamespace(pack=dict))
        patch.setattr(survivor, "node_address", lambda: "127.0.0.1")
        patch.setattr(survivor, "Offer", lambda *_, **__: SimpleNamespace(address=ADDRESS))
        patch.setattr(survivor, "packed_state", self)
        patch.setattr(survivor, "donor_of", lambda *_: HERE)

    def hold(self) -> None:
        here: Any = None
        self.survivor._hold(here, here)

    # What it uses.

    def held(self) -> Held | None:
        if self.machine.view is AFTER:
            return None
        return Held(rank=HERE, generation=4, step=9)

    def hear(self, held: Held) -> None:
        self.did.append("held")
        self.machine.view = AFTER

    def told(self, key: str, word: bytes) -> None:
        self.did.append("told")
        self.words[key] = unpacked_word(word)

    def notice(self, words: str, event: str) -> None:
        assert event == REFUSE_RETURN
        self.did.append(words)

    def slot_of(self, *_: object) -> None:
        self.did.append("found")

    def made(self, *_: object, **__: object) -> SimpleNamespace:
        self.did.append("made")
        return SimpleNamespace(manifest={}, tensors=[])

    def stops(self) -> None: ...

    def welcomes(self, *_: object) -> None: ...

    def return_begins(self, step: int) -> None: ...


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Standing:
    return Standing(monkeypatch)


def test_others_go_on_before_the_state_is_packed(member: Standing) -> None:
    member.hold()

    assert member.did == ["found", "renewed", "held", "made", "told"]
    assert member.words == {"arrival/5/2": ADDRESS}


def test_who_stands_still_longer_says_so_again_and_gives_once(
    member: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survivor, "HELD_AGAIN_S", 0.0)
    heard: list[Held] = []

    def late(held: Held) -> None:
        heard.append(held)
        if len(heard) == 3:
            member.machine.view = AFTER

    member.worker.link = SimpleNamespace(send=late)
    member.hold()

    assert len(heard) == 3
    assert member.did.count("made") == 1


def test_where_a_lost_rank_stands_is_found_before_anybody_comes(
    member: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> Never:
        raise NotReachable("x of rank 2 is not known")

    monkeypatch.setattr(member, "slot_of", unknown)
    member.hold()

    words = "a lost replica does not come back: x of rank 2 is not known"
    assert member.did == [words, "told", "renewed", "held"]
    assert member.words == {"arrival/5/2": "x of rank 2 is not known"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotReachable("a generator cannot travel"), "a generator cannot travel"),
        (KeyError("x"), "its state cannot be sent: KeyError('x')"),
    ],
)
def test_a_newcomer_is_told_if_its_state_cannot_be_packed(
    error: Exception, reason: str, member: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view may have begun by then: it would wait for a word that never comes."""

    def fail(*_: object, **__: object) -> Never:
        raise error

    monkeypatch.setattr(member, "made", fail)
    member.hold()

    assert member.words == {"arrival/5/2": reason}
    assert f"a lost replica does not come back: {reason}" in member.did


@pytest.mark.parametrize(("back", "gives"), [((0,), True), ((1,), False)])
def test_rank_0_works_again_once_its_first_step_is_committed(
    back: tuple[int, ...], gives: bool, member: Standing
) -> None:
    said: list[str] = []
    runtime = SimpleNamespace(gate=SimpleNamespace(led=True), sources=())
    member.worker.runtime, member.worker.reporter = runtime, SimpleNamespace(notice=said.append)
    member.parts.made, member.parts.left.forget = SimpleNamespace(), lambda _: None
    member.survivor._path = ["loop"]
    member.survivor.meet(back)

    assert said == []
    member.survivor.committed()

    assert bool(said) == gives
