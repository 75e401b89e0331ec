"""A configuration is told in short to whoever knows the one before, and in full to anybody else."""

import pytest

from rendezvous.consensus.acceptor import Acceptor
from rendezvous.consensus.configuration import NOBODY, Configuration
from rendezvous.consensus.paxos import Register
from rendezvous.consensus.register_events import Enrolled, Heard, To
from rendezvous.protocol import codec
from rendezvous.protocol.register_messages import ConfigurationChange, NewConfiguration, Ping

MANY = tuple(f"{number:016x}" for number in range(5000))


@pytest.mark.parametrize(
    ("leader", "out", "news"),
    [("a", {"c"}, []), ("b", {"a"}, []), ("a", set(), ["x", "y"]), ("c", {"a", "b"}, ["x"])],
)
def test_whoever_knows_the_configuration_before_makes_the_next_from_the_change(
    leader: str, out: set[str], news: list[str]
) -> None:
    configuration = Configuration(7, 2, ("a", "b", "c", "d"))
    following = configuration.following(leader, out, news)

    change = configuration.change(following)

    assert change is not None and configuration.changed(change) == following


def test_what_no_change_leads_to_is_said_in_full() -> None:
    assert Configuration(7, 2, ("a", "b")).change(Configuration(1007, 1002, ("b",))) is None
    assert NOBODY.change(Configuration(3, 1, ("a", "b"))) is None


def test_the_loss_of_one_of_five_thousand_is_told_in_a_hundred_bytes() -> None:
    configuration = Configuration(7, 2, MANY)
    acceptor = Acceptor(configuration)

    told = acceptor.announcements(configuration.following(MANY[0], {MANY[77]}, ["new"]))

    assert isinstance(told["new"], NewConfiguration)
    change = told[MANY[4999]]
    assert change == told[MANY[77]]  # who is out has to know
    assert isinstance(change, ConfigurationChange) and len(codec.encode(change)) < 150


def test_a_member_that_missed_a_change_asks_for_all_of_it() -> None:
    first = Configuration(1, 1, ("a", "b", "c", "d"))
    second = first.following("a", {"d"}, [])
    third = second.following("a", {"c"}, [])
    change = second.change(third)
    assert change is not None
    member = Register(own="b", configuration=first, now=0.0)

    effects = member.step(Heard("a", change), 0.1)

    assert member.configuration == first
    (asked,) = [effect for effect in effects if isinstance(effect, To)]
    assert asked.node == "a" and isinstance(asked.message, Ping) and asked.message.number == 1
    (enrolled,) = member.step(Heard("a", NewConfiguration(configuration=third.plain())), 0.2)
    assert enrolled == Enrolled(third)
