"""The consequences of the proof that other launchers are dead.

Its lease ends with a launcher, and nobody waits for it. Where most voters are dead, the members
that are left decide (`electorate`), if it is certain at that moment that they were left out of
nothing. What makes it so is the word of a leader: to leave out whom it has answered takes it the
silence of a `heartbeat`. A leader itself is left out sooner, once its lease has lapsed; it is
certain of nothing else.
"""

from typing import Protocol

from rendezvous.consensus import timeouts
from rendezvous.consensus.campaign import Campaign
from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.electorate import Electorate
from rendezvous.consensus.leader_contact import LeaderContact
from rendezvous.consensus.peers import Peers
from rendezvous.consensus.register_events import OnSilence
from rendezvous.consensus.voter import Voter


class Launcher(Protocol):
    """The interface of a launcher's register for deaths."""

    own: str
    now: float
    on_silence: OnSilence
    settled: bool
    voter: Voter
    peers: Peers
    contact: LeaderContact
    campaign: Campaign

    @property
    def configuration(self) -> Configuration:
        """The newest that is known to be decided."""

    @property
    def eligible(self) -> bool:
        """True if it may stand."""

    def go_on_alone(self, leap: int) -> None:
        """Be the only member of a configuration that is so many numbers ahead."""

    def give_up(self, reason: str, *, silent: bool) -> None:
        """Be cut off."""


class ProvedDeaths:
    """The proved deaths, as one launcher knows them."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._certain = False

    def electorate(self, configuration: Configuration) -> Electorate:
        """The launchers that decide what follows: without the dead, if it is certain that we are
        not left out.
        """
        return Electorate(configuration, self._launcher.peers.dead if self._certain else set())

    def recheck(self) -> None:
        """Others are dead, or another configuration is known: see if it is certain that we are in
        it.

        That is asked once, and again at each death: from the moment on at which no vote of the dead
        can be won, nothing is decided without us by those who live, or they do not answer us.
        """
        launcher = self._launcher
        asked = launcher.eligible
        orphaned = Electorate(launcher.configuration, launcher.peers.dead).orphaned
        self._certain = orphaned and self.known
        if launcher.eligible and not asked:
            launcher.voter.wait(launcher.now)  # Its time to stand may have been any, until now.
        self._stand_in_turn()

    @property
    def known(self) -> bool:
        """True if no configuration without us can have been decided by now."""
        launcher, now = self._launcher, self._launcher.now
        if launcher.own not in launcher.voter.acceptor.newest.members:
            return False  # We have accepted that ourselves.
        contact, campaign = launcher.contact, launcher.campaign
        since_s = now - contact.kept_at
        if launcher.configuration.leader == launcher.own:
            met = contact.met or campaign.established(launcher.own)
            return (met and campaign.unopposed(now)) or since_s <= timeouts.CONTACT_LEADING_S
        return since_s <= timeouts.CONTACT_S

    def declare_dead(self, node: str) -> None:
        launcher = self._launcher
        launcher.peers.dead.add(node)
        launcher.voter.release(node, launcher.now)
        self.recheck()
        launcher.campaign.ask_again()
        left = Electorate(launcher.configuration, launcher.peers.dead).left
        alone = left == (launcher.own,)
        if alone and launcher.configuration.voters != left:
            self._survive()

    def _stand_in_turn(self) -> None:
        """Nobody is waited for if the leader is dead, and so is whom we have promised to follow."""
        launcher = self._launcher
        followed = {launcher.configuration.leader, launcher.voter.followed} - {"", launcher.own}
        if followed <= launcher.peers.dead and launcher.eligible and not launcher.campaign.proposer:
            left = Electorate(launcher.configuration, launcher.peers.dead).left
            turn = left.index(launcher.own)
            launcher.voter.stand_at = launcher.now + timeouts.STAND_NEXT_S * turn

    def _survive(self) -> None:
        """All others are dead: go on alone, if nothing can have been decided without us."""
        launcher = self._launcher
        known = self.known or launcher.on_silence == "continue"
        witness = launcher.configuration.witness
        if not known and launcher.settled and witness in launcher.configuration.voters:
            return  # It votes in their place, if it is there.
        if not known or not launcher.settled:
            words = "all others have ended, and what they had agreed on last is not known"
            launcher.give_up(words, silent=False)
            return
        launcher.go_on_alone(timeouts.LEAP)
