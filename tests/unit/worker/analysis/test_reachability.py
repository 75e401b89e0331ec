"""Paths to a backward: the same however they came to be known, and as the definition has it."""

import random
from collections.abc import Iterator

import pytest

from recoverrun.worker.analysis.reachability import RESULT, Reachability

NAMES = "abcdefgh"
Fact = tuple[str, tuple[object, ...]]


def facts(seed: int) -> Iterator[Fact]:
    """Things that modules may say, of few names so that they meet."""
    draw = random.Random(seed)
    for _ in range(draw.randint(5, 40)):
        one, other = draw.choice(NAMES), draw.choice(NAMES)
        source = other + (RESULT if draw.random() < 0.3 else "")
        yield draw.choice(
            [
                ("add_function", (one,)),
                ("add_call", (one, other)),
                ("add_passing", (one, other)),
                ("add_called", (one,)),
                ("add_maker", (one,)),
                ("add_alias", (one, source)),
                ("add_parameters", (one, tuple(draw.sample(NAMES, draw.randint(0, 3))))),
                ("add_argument", (one, draw.randint(0, 2), source)),
            ]
        )


def reaching_by_definition(known: list[Fact]) -> set[str]:
    """All rules, over and over, until none adds anything."""

    def said(what: str) -> set[tuple[object, ...]]:
        return {fact for kind, fact in known if kind == what}

    functions = {name for (name,) in said("add_function")}
    called = {name for (name,) in said("add_called")}
    makers = {str(name) for (name,) in said("add_maker")}
    aliases = {(str(name), str(source)) for name, source in said("add_alias")}
    for callee, parameters in said("add_parameters"):
        assert isinstance(parameters, tuple)
        for to, position, source in said("add_argument"):
            if to == callee and isinstance(position, int) and position < len(parameters):
                aliases.add((parameters[position], str(source)))
    reaching, leading = {"a"}, {"a"}
    while True:
        before = len(reaching) + len(leading) + len(makers)
        makers |= {name for name, source in aliases if source in makers}
        leading |= reaching | {
            name
            for name, source in aliases
            if source in leading or (source.endswith(RESULT) and source[:-2] in leading & makers)
        }
        reaching |= {str(one) for one, other in said("add_call") if other in reaching}
        reaching |= {
            str(one) for one, other in said("add_passing") if other in reaching & functions
        }
        reaching |= {name for name in leading if name in called}
        if len(reaching) + len(leading) + len(makers) == before:
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
    alone = below.reaching.all(), below.standing_for.all(), below.makers.all()

    above = below.extension()
    learn(above, known[half:])

    assert above.reaching.all() == reaching_by_definition(known)
    assert (below.reaching.all(), below.standing_for.all(), below.makers.all()) == alone
    learn(below, known[half:])
    assert below.reaching.all() == above.reaching.all()
