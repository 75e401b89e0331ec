"""A witness gives one number to one configuration, whoever asks and wherever its memory is."""

import os
import threading
from pathlib import Path

import pytest

from recoverrun.launcher.network.witness_files import NAME, Unusable, WitnessFiles
from recoverrun.launcher.network.witness_server import WitnessServer
from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.register_events import RegisterMessage
from rendezvous.consensus.witness import DamagedVote, Witness
from rendezvous.protocol import codec
from rendezvous.protocol.formation_messages import Beat
from rendezvous.protocol.register_messages import (
    Accept,
    Accepted,
    NewConfiguration,
    Ping,
    Prepare,
    Prepared,
    Rejected,
)
from rendezvous.protocol.register_messages import Testimony as Word  # not a test

PAIR = Configuration(7, 1, ("a", "b"), "w/a")


def _alone(name: str) -> Configuration:
    return PAIR.following(name, {"a", "b"} - {name}, (), PAIR.witness)


def _prepare(ballot: tuple[int, str], base: Configuration = PAIR) -> Prepare:
    return Prepare(ballot=ballot, configuration=base.plain())


def _accept(
    ballot: tuple[int, str], configuration: Configuration, base: Configuration = PAIR
) -> Accept:
    return Accept(ballot=ballot, base=base.plain(), configuration=configuration.plain())


def test_with_a_witness_two_and_four_members_all_vote() -> None:
    four = Configuration(1, 1, ("a", "b", "c", "d"), "w/a")

    assert PAIR.voters == ("a", "b", "w/a")
    assert four.voters == (*four.members, "w/a")
    assert Configuration(1, 1, ("a", "b", "c"), "w/a").voters == ("a", "b", "c")
    assert Configuration(1, 1, ("a",), "w/a").voters == ("a",)
    assert PAIR.grantors == ("a", "b")


def test_whoever_comes_second_is_told_what_the_first_one_was_given() -> None:
    witness = Witness()
    witness.hear(_prepare((1, "a")))
    assert witness.hear(_accept((1, "a"), _alone("a"))) == Accepted(ballot=(1, "a"), number=8)

    answer = witness.hear(_prepare((2, "b")))

    assert isinstance(answer, Prepared)
    assert Configuration(*answer.accepted) == _alone("a")


def test_a_lower_ballot_than_was_promised_is_refused() -> None:
    witness = Witness()
    witness.hear(_prepare((2, "b")))

    answer = witness.hear(_accept((1, "a"), _alone("a")))

    assert answer == Rejected(ballot=(1, "a"), promised=(2, "b"), hold_s=0.0)


def test_a_configuration_that_does_not_follow_its_base_is_nonsense() -> None:
    witness = Witness()

    for configuration in (PAIR, Configuration(3, 1, ("a",))):
        assert witness.hear(_accept((1, "a"), configuration)) is None
    assert witness.kept() == Witness().kept()


def test_whoever_asks_for_what_is_decided_is_told_so() -> None:
    witness = Witness()
    witness.hear(NewConfiguration(configuration=_alone("b").plain()))

    for question in (_prepare((9, "a")), Ping(number=7, sent_at=0.0, undecided=False)):
        assert witness.hear(question) == NewConfiguration(configuration=_alone("b").plain())


def test_what_is_kept_of_it_is_all_of_it() -> None:
    witness = Witness()
    witness.hear(_prepare((2, "b")))
    witness.hear(_accept((2, "b"), _alone("b")))

    again = Witness.restored(witness.kept())

    assert again.kept() == witness.kept()
    assert again.hear(_prepare((3, "a"))) == witness.hear(_prepare((3, "a")))


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"roll": [1, 1, [2], ""], "promised": [0, ""], "accepted_in": [0, ""], '
     '"accepted": null}', '{"roll": [9, 1, [], ""], "promised": [0, ""], "accepted_in": [0, ""], '
     '"accepted": [3, 1, [], ""]}', Witness().kept()[:-20]],
)  # fmt: skip
def test_a_damaged_memory_is_refused(text: str) -> None:
    with pytest.raises(DamagedVote):
        Witness.restored(text)


def _vote(files: WitnessFiles) -> str:
    return f"{files.name()}/job"


def test_two_launchers_share_what_is_in_the_files(tmp_path: Path) -> None:
    one, two = WitnessFiles(tmp_path), WitnessFiles(tmp_path)
    assert one.name() == two.name()
    vote = _vote(one)
    one.hear(vote, _prepare((1, "a")))
    assert isinstance(one.hear(vote, _accept((1, "a"), _alone("a"))), Accepted)

    answer = two.hear(vote, _prepare((2, "b")))

    assert isinstance(answer, Prepared)
    assert Configuration(*answer.accepted) == _alone("a")


def test_a_question_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    files = WitnessFiles(tmp_path)
    vote = _vote(files)
    for _ in range(3):
        files.hear(vote, _prepare((1, "a")))
        files.hear(vote, Ping(number=0, sent_at=0.0, undecided=False))

    assert sorted(os.listdir(tmp_path / vote)) == ["00000001"]


@pytest.mark.parametrize("turn", range(5))
def test_of_many_that_ask_at_once_one_is_given_the_number(tmp_path: Path, turn: int) -> None:
    names = [f"n{place}" for place in range(6)]
    base = Configuration(7, 1, tuple(names), "w/n0")
    given: dict[str, Configuration] = {}
    begin = threading.Barrier(len(names))

    def stand(name: str) -> None:
        """As a candidate does: adopt what was accepted, else propose oneself."""
        files = WitnessFiles(tmp_path)
        vote = _vote(files)
        begin.wait()
        for number in range(1, 30):
            ballot = (number, name)
            promise = files.hear(vote, _prepare(ballot, base))
            if not isinstance(promise, Prepared):
                continue
            found = Configuration(*promise.accepted)
            mine = found if found.number == 8 else Configuration(8, 2, (name,), "w/n0")
            if isinstance(files.hear(vote, _accept(ballot, mine, base)), Accepted):
                given[name] = mine
                return

    threads = [threading.Thread(target=stand, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(given) == len(names)
    assert len(set(given.values())) == 1


def test_a_vote_of_another_witness_is_not_answered(tmp_path: Path) -> None:
    files = WitnessFiles(tmp_path)
    files.name()

    for vote in ("other/job", "../job", f"{files.name()}/../x", f"{files.name()}/", "", "/"):
        assert files.hear(vote, _prepare((1, "a"))) is None
    assert sorted(os.listdir(tmp_path)) == sorted([NAME, files.name()])


def test_a_directory_that_lost_its_votes_is_no_witness_any_more(tmp_path: Path) -> None:
    files = WitnessFiles(tmp_path)
    (tmp_path / files.name()).rmdir()

    with pytest.raises(Unusable, match="is gone"):
        files.name()


def test_damage_is_said_and_gives_nothing(tmp_path: Path) -> None:
    files = WitnessFiles(tmp_path)
    vote = _vote(files)
    files.hear(vote, _prepare((1, "a")))
    (tmp_path / vote / "00000001").write_text("nonsense")

    with pytest.raises(Unusable, match="is damaged"):
        files.hear(vote, _prepare((2, "b")))


def _ask(server: WitnessServer, vote: str, message: RegisterMessage) -> RegisterMessage | None:
    answer = server.answer(Word(vote=vote, frame=codec.encode(message)))
    if answer is None:
        return None
    assert isinstance(answer, Word) and answer.vote == vote
    said = codec.decode(answer.frame)
    assert isinstance(said, RegisterMessage)
    return said


def test_a_process_has_a_vote_in_each_job_and_none_of_another_witness() -> None:
    server = WitnessServer("w")

    assert server.answer(Beat(node="n", incarnation="a")) == Beat(node="witness", incarnation="w")
    assert isinstance(_ask(server, "w/a", _accept((1, "a"), _alone("a"))), Accepted)
    assert isinstance(_ask(server, "w/b", _prepare((1, "a"))), Prepared)
    assert _ask(server, "x/a", _prepare((1, "a"))) is None
    assert server.answer(Word(vote="w/a", frame=b"nonsense")) is None
