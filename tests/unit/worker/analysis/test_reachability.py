"""Paths to a backward: the same however they came to be known, and as the definition has it."""

import random
from collections.abc import Iterator

import pytest

from recoverrun.worker.analysis.bare_names import RESULT
from recoverrun.worker.analysis.reachability import ENDS, Parameters, Reachability, slot

NAMES = "abcdefgh"
PLACES = [place + end for place in "012" for end in ENDS]
Fact = tuple[str, tuple[object, ...]]


def facts(seed: int) -> Iterator[Fact]:
    """Things that modules may say, of few names so that they meet."""
    draw = random.Random(seed)

    def some() -> str:
        return draw.choice(NAMES) + draw.choice(["", "", RESULT])

    for _ in range(draw.randint(5, 40)):
        one, other = draw.choice(NAMES), draw.choice(NAMES)
        places = tuple(draw.sample(NAMES, draw.randint(0, 3)))
        yield draw.choice(
            [
                ("add_function", (one,)),
                ("add_call", (one, other)),
                ("add_passing", (one, other)),
                ("add_called", (one,)),
                ("add_alias", (one, some(), draw.random() < 0.3)),
                ("add_alias", (slot(one, draw.randint(0, 2)), other, draw.random() < 0.3)),
                ("add_parameters", (one, Parameters(places))),
            ]
        )


def renamed(known: list[Fact], leading: set[str], wrapped: bool) -> set[str]:
    """All that goes by another name, once."""
    found: set[str] = set()
    for kind, fact in known:
        if kind == "add_parameters":
            callee, parameters = fact
            assert isinstance(parameters, Parameters)
            for place in PLACES:
                if slot(str(callee), place) in leading:
                    found.update(parameters.given(place))
        if kind != "add_alias" or (fact[2] and not wrapped):
            continue
        name, source = str(fact[0]), str(fact[1])
        found |= {name + end for end in ENDS if source + end in leading}
        if not fact[2]:
            found |= {slot(source, place) for place in PLACES if slot(name, place) in leading}
    return found


def reaching_by_definition(known: list[Fact]) -> set[str]:
    """All rules, over and over, until none adds anything."""

    def said(what: str) -> set[tuple[object, ...]]:
        return {fact for kind, fact in known if kind == what}

    functions = {name for (name,) in said("add_function")}
    called = {name for (name,) in said("add_called")}
    reaching, leading, handed = {"a"}, {"a"}, set[str]()
    while True:
        before = len(reaching) + len(leading) + len(handed)
        leading |= reaching | renamed(known, leading, wrapped=True)
        handed |= (reaching & functions) | renamed(known, handed, wrapped=False)
        reaching |= {str(one) for one, other in said("add_call") if other in reaching}
        reaching |= {str(one) for one, other in said("add_passing") if other in handed}
        reaching |= {name for name in leading if name in called}
        if len(reaching) + len(leading) + len(handed) == before:
            return reaching


def learn(reach: Reachability, known: list[Fact]) -> None:
    for kind, fact in known:
        getattr(reach, kind)(*fact)


@pytest.mark.parametrize("seed", range(200))
def test_it_is_what_the_definition_says_in_any_order(seed: int) -> None:
    known = list(facts(seed))
    reach = Reachability()
    reach.add_reaching("a")
    learn(reach, random.Random(seed + 1).sample(known, len(known)))

    assert reach.reaching.all() == reaching_by_definition(known)


@pytest.mark.parametrize("seed", range(200))
def test_what_is_above_adds_to_what_is_below_and_leaves_it_as_it_is(seed: int) -> None:
    known = list(facts(seed))
    half = len(known) // 2
    below = Reachability()
    below.add_reaching("a")
    learn(below, known[:half])
    alone = below.reaching.all(), below.standing_for.all(), below.handed.all()

    above = below.extension()
    learn(above, known[half:])

    assert above.reaching.all() == reaching_by_definition(known)
    assert (below.reaching.all(), below.standing_for.all(), below.handed.all()) == alone
    learn(below, known[half:])
    assert below.reaching.all() == above.reaching.all()
