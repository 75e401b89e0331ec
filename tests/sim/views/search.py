"""Every order of messages in a small history: three voters, two candidates, up to two faults.

Leases are left out, because one configuration for each number must not depend on any clock. The
leader proposes to leave one launcher out, while two others stand against it; or the one, where the
third voter is a witness, which stands for nothing. From each state every message may arrive next,
be lost, or its receiver may crash; states that were seen are not entered again.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.paxos import Register
from rendezvous.consensus.register_events import (
    Effect,
    Enrolled,
    Event,
    Heard,
    Part,
    RegisterMessage,
    Tick,
    To,
    WitnessSeen,
)
from rendezvous.consensus.witness import Witness
from rendezvous.protocol.register_messages import (
    Accept,
    Accepted,
    Granted,
    Lead,
    NewConfiguration,
    Ping,
    Pong,
    Prepared,
    Rejected,
)
from tests.sim.views.book import Book

THREE = Configuration(1, 1, ("a", "b", "c"))
PAIR = Configuration(1, 1, ("a", "b"), "w/a")
CLOCKED = (Lead, Granted, Ping, Pong)
"""Messages that only serve leases."""

Voter = Register | Witness

Letter = tuple[str, str, RegisterMessage]
"""From, to, what."""


@dataclass(frozen=True, slots=True)
class State:
    nodes: tuple[Voter | None, ...]  # None: crashed
    letters: tuple[Letter, ...]
    candidates: tuple[int, ...]  # who may still stand
    faults: int  # that may still happen
    decided: tuple[Configuration, ...] = ()  # by now, whoever knew it
    path: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        nodes = tuple(_facts(node) for node in self.nodes)
        letters = tuple(sorted(map(repr, self.letters)))
        return nodes, letters, self.candidates, self.faults, self.decided


def _facts(node: Voter | None) -> object:
    if node is None or isinstance(node, Witness):
        return node and node.kept()
    proposer = node.proposer
    mine = proposer and (
        proposer.ballot, proposer.base, frozenset(proposer.prepared), proposer.found_in,
        proposer.found, proposer.elected, proposer.proposal, frozenset(proposer.accepted),
    )  # fmt: skip
    vote = node.vote
    return (
        vote.configuration,
        vote.promised,
        vote.accepted_in,
        vote.accepted,
        node.voter.newest_round,
        mine,
    )


class Search:
    """`check` sees every state; the book raises Violation if two configurations have one number."""

    def __init__(self, most: int, first: Configuration = THREE) -> None:
        self.most = most
        self.first = first
        self.names = first.voters
        self.states = 0
        self.complete = True

    def run(self, *, faults: int, candidates: tuple[int, ...] = (1, 2)) -> None:
        first = self._begin(faults, candidates)
        seen = {first.key}
        stack = [first]
        while stack:
            state = stack.pop()
            self.states += 1
            if self.states > self.most:
                self.complete = False
                return
            for following in self._moves(state):
                key = following.key
                if key not in seen:
                    seen.add(key)
                    stack.append(following)

    def _begin(self, faults: int, candidates: tuple[int, ...]) -> State:
        """The first launcher leads, and is asked to go on without the last."""
        nodes: list[Voter] = [
            _timeless(Register(own=name, configuration=self.first, now=0.0))
            for name in self.first.members
        ]
        nodes += [Witness()] if self.first.witness else []
        state = State(tuple(nodes), (), candidates, faults)
        if self.first.witness:
            name = self.first.witness.partition("/")[0]
            for place in range(len(self.first.members)):
                state = self._feed(state, place, WitnessSeen(name), f"{name} is there")
        state = self._feed(state, 0, Tick(0.5), "a stands")
        while state.letters:
            state = self._deliver(state, 0)
        other = self.first.members[-1]
        return self._feed(state, 0, Part(other), f"{other} parts")

    def _moves(self, state: State) -> Iterator[State]:
        for number, (_, to, _message) in enumerate(state.letters):
            yield self._deliver(state, number)
            if state.faults:
                yield self._lose(state, number)
                if state.nodes[self.names.index(to)] is not None:
                    yield self._crash(state, self.names.index(to))
        for place in state.candidates:
            node = state.nodes[place]
            if (
                isinstance(node, Register)
                and node.own in node.configuration.voters
                and node.proposer is None
            ):
                rest = tuple(other for other in state.candidates if other != place)
                ready = copy.deepcopy(node)
                ready.voter.stand_at = ready.now
                nodes = (*state.nodes[:place], ready, *state.nodes[place + 1 :])
                armed = replace(state, nodes=nodes, candidates=rest)
                yield self._feed(armed, place, Tick(0.5), f"{node.own} stands")

    def _deliver(self, state: State, number: int) -> State:
        sender, to, message = state.letters[number]
        rest = state.letters[:number] + state.letters[number + 1 :]
        left = replace(state, letters=rest)
        place = self.names.index(to)
        if left.nodes[place] is None:
            return left
        return self._feed(left, place, Heard(sender, message), f"{to} gets {message}")

    def _lose(self, state: State, number: int) -> State:
        rest = state.letters[:number] + state.letters[number + 1 :]
        path = (*state.path, f"lost: {state.letters[number]}")
        return replace(state, letters=rest, faults=state.faults - 1, path=path)

    def _crash(self, state: State, place: int) -> State:
        nodes = (*state.nodes[:place], None, *state.nodes[place + 1 :])
        path = (*state.path, f"{self.names[place]} crashes")
        return replace(state, nodes=nodes, faults=state.faults - 1, path=path)

    def _feed(self, state: State, place: int, event: Event, words: str) -> State:
        known = state.nodes[place]
        assert known is not None, "only the living are fed"
        node = copy.deepcopy(known)
        path = (*state.path, words)
        letters = [*state.letters]
        effects: list[Effect] = []
        if isinstance(node, Register):
            effects = node.step(event, 0.0)
        elif isinstance(event, Heard):
            answer = node.hear(event.message)
            effects = [To(event.sender, answer)] if answer is not None else []
        for effect in effects:
            if isinstance(effect, To) and not isinstance(effect.message, CLOCKED):
                letters.append((self.names[place], effect.node, effect.message))
        nodes = (*state.nodes[:place], node, *state.nodes[place + 1 :])
        letters = [
            letter for letter in letters if _matters(nodes[self.names.index(letter[1])], letter[2])
        ]
        following = replace(state, nodes=nodes, letters=tuple(letters), path=path)
        return self._agree(following, effects)

    def _agree(self, state: State, effects: list[Effect]) -> State:
        """Check that all know or propose one configuration as the base of what follows."""
        book = Book(self.first)
        claims = [*state.decided]
        claims += [effect.configuration for effect in effects if isinstance(effect, Enrolled)]
        claims += [Configuration(*m.base) for _, _, m in state.letters if isinstance(m, Accept)]
        for configuration in claims:
            book.decided(configuration)
        return replace(state, decided=tuple(sorted(book.configurations.values())))


def _matters(node: Voter | None, message: RegisterMessage) -> bool:
    """False if its arrival changes nothing, now or ever."""
    if node is None:
        return False
    proposer = node.proposer if isinstance(node, Register) else None
    match message:
        case NewConfiguration(configuration=configuration):
            return configuration[0] > node.vote.configuration.number
        case Prepared(ballot=ballot, number=number):
            return proposer is not None and (ballot, number) == (
                proposer.ballot,
                proposer.base.number,
            )
        case Accepted(ballot=ballot, number=number):
            asked = (
                proposer.proposal if proposer is not None and proposer.ballot == ballot else None
            )
            return asked is not None and asked.number == number
        case Rejected(ballot=ballot):
            return proposer is not None and proposer.ballot == ballot
        case _:
            return True


def _timeless(node: Register) -> Register:
    node.voter.hold_until = float("-inf")
    node.ping_at = float("inf")
    if node.configuration.leader != node.own:
        node.voter.stand_at = float("inf")
    return node
