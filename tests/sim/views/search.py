"""Every order of messages in a small history: three launchers, two candidates, up to two faults.

Leases are left out, because one roll for each number must not depend on any clock. The leader
proposes to leave one launcher out, while two others stand against it. From each state every message
may arrive next, be lost, or its receiver may crash; states that were seen are not entered again.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rendezvous.ballots import (
    Accept,
    Accepted,
    Granted,
    Lead,
    Ping,
    Pong,
    Prepared,
    Rejected,
    RollCall,
)
from rendezvous.council import Council, Effect, Enrolled, Event, Heard, Part, Tick, To
from rendezvous.register import Register
from rendezvous.roll import Roll
from tests.sim.views.book import Book

NAMES = ("a", "b", "c")
FIRST = Roll(1, 1, NAMES)
CLOCKED = (Lead, Granted, Ping, Pong)
"""Messages that only serve leases and gates."""

Letter = tuple[str, str, Council]
"""From, to, what."""


@dataclass(frozen=True, slots=True)
class State:
    nodes: tuple[Register | None, ...]  # None: crashed
    letters: tuple[Letter, ...]
    candidates: tuple[int, ...]  # who may still stand
    faults: int  # that may still happen
    decided: tuple[Roll, ...] = ()  # by now, whoever knew it
    path: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        nodes = tuple(_facts(node) for node in self.nodes)
        letters = tuple(sorted(map(repr, self.letters)))
        return nodes, letters, self.candidates, self.faults, self.decided


def _facts(node: Register | None) -> object:
    if node is None:
        return None
    bid = node.bid
    mine = bid and (
        bid.ballot, bid.base, frozenset(bid.prepared), bid.found_in, bid.found, bid.elected,
        bid.proposal, frozenset(bid.accepted),
    )  # fmt: skip
    vote = node.vote
    return vote.roll, vote.promised, vote.accepted_in, vote.accepted, node.newest_round, mine


class Search:
    """`check` sees every state; the book raises Violation where two rolls have one number."""

    def __init__(self, most: int) -> None:
        self.most = most
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
        """The first launcher leads, and is asked to go on without the third."""
        nodes = [_timeless(Register(own=name, roll=FIRST, now=0.0)) for name in NAMES]
        state = State(tuple(nodes), (), candidates, faults)
        state = self._feed(state, 0, Tick(0.5), "a stands")
        while state.letters:
            state = self._deliver(state, 0)
        return self._feed(state, 0, Part("c"), "c parts")

    def _moves(self, state: State) -> Iterator[State]:
        for number, (_, to, _message) in enumerate(state.letters):
            yield self._deliver(state, number)
            if state.faults:
                yield self._lose(state, number)
                if state.nodes[NAMES.index(to)] is not None:
                    yield self._crash(state, NAMES.index(to))
        for place in state.candidates:
            node = state.nodes[place]
            if node is not None and node.own in node.roll.voters and node.bid is None:
                rest = tuple(other for other in state.candidates if other != place)
                ready = copy.deepcopy(node)
                ready.stand_at = ready.now
                nodes = (*state.nodes[:place], ready, *state.nodes[place + 1 :])
                armed = replace(state, nodes=nodes, candidates=rest)
                yield self._feed(armed, place, Tick(0.5), f"{node.own} stands")

    def _deliver(self, state: State, number: int) -> State:
        sender, to, message = state.letters[number]
        rest = state.letters[:number] + state.letters[number + 1 :]
        left = replace(state, letters=rest)
        place = NAMES.index(to)
        if left.nodes[place] is None:
            return left
        return self._feed(left, place, Heard(sender, message), f"{to} gets {message}")

    def _lose(self, state: State, number: int) -> State:
        rest = state.letters[:number] + state.letters[number + 1 :]
        path = (*state.path, f"lost: {state.letters[number]}")
        return replace(state, letters=rest, faults=state.faults - 1, path=path)

    def _crash(self, state: State, place: int) -> State:
        nodes = (*state.nodes[:place], None, *state.nodes[place + 1 :])
        path = (*state.path, f"{NAMES[place]} crashes")
        return replace(state, nodes=nodes, faults=state.faults - 1, path=path)

    def _feed(self, state: State, place: int, event: Event, words: str) -> State:
        known = state.nodes[place]
        assert known is not None, "only the living are fed"
        node = copy.deepcopy(known)
        effects = node.step(event, 0.0)
        path = (*state.path, words)
        letters = [*state.letters]
        for effect in effects:
            if isinstance(effect, To) and not isinstance(effect.message, CLOCKED):
                letters.append((node.own, effect.node, effect.message))
        nodes = (*state.nodes[:place], node, *state.nodes[place + 1 :])
        letters = [letter for letter in letters if _matters(nodes, letter)]
        following = replace(state, nodes=nodes, letters=tuple(letters), path=path)
        return _agree(following, effects)


def _matters(nodes: tuple[Register | None, ...], letter: Letter) -> bool:
    """False if its arrival changes nothing, now or ever."""
    _, to, message = letter
    node = nodes[NAMES.index(to)]
    if node is None:
        return False
    bid = node.bid
    match message:
        case RollCall(roll=roll):
            return roll[0] > node.roll.number
        case Prepared(ballot=ballot, number=number):
            return bid is not None and (ballot, number) == (bid.ballot, bid.base.number)
        case Accepted(ballot=ballot, number=number):
            asked = bid.proposal if bid is not None and bid.ballot == ballot else None
            return asked is not None and asked.number == number
        case Rejected(ballot=ballot):
            return bid is not None and bid.ballot == ballot
        case _:
            return True


def _timeless(node: Register) -> Register:
    node.hold_until = float("-inf")
    node.ping_at = float("inf")
    if node.roll.leader != node.own:
        node.stand_at = float("inf")
    return node


def _agree(state: State, effects: list[Effect]) -> State:
    """Whatever a launcher knows to be decided, or asks others to build on, is one roll a number."""
    book = Book(FIRST)
    claims = [*state.decided]
    claims += [effect.roll for effect in effects if isinstance(effect, Enrolled)]
    claims += [Roll(*m.base) for _, _, m in state.letters if isinstance(m, Accept)]
    for roll in claims:
        book.decided(roll)
    return replace(state, decided=tuple(sorted(book.rolls.values())))
