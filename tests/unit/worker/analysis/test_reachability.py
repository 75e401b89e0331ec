"""What leads to a backward: the same however it came to be known, and as its definition has it."""

import random
from collections.abc import Iterator

import pytest

from recoverrun.worker.analysis.reachability import RESULT, Reach

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
                ("define", (one,)),
                ("call", (one, other)),
                ("hand", (one, other)),
                ("mention", (one,)),
                ("make", (one,)),
                ("alias", (one, source)),
                ("accept", (one, tuple(draw.sample(NAMES, draw.randint(0, 3))))),
                ("argue", (one, draw.randint(0, 2), source)),
            ]
        )


def hot_by_definition(known: list[Fact]) -> set[str]:
    """All rules, over and over, until none adds anything."""

    def said(what: str) -> set[tuple[object, ...]]:
        return {fact for kind, fact in known if kind == what}

    functions = {name for (name,) in said("define")}
    called = {name for (name,) in said("mention")}
    makers = {str(name) for (name,) in said("make")}
    aliases = {(str(name), str(source)) for name, source in said("alias")}
    for callee, parameters in said("accept"):
        assert isinstance(parameters, tuple)
        for to, position, source in said("argue"):
            if to == callee and isinstance(position, int) and position < len(parameters):
                aliases.add((parameters[position], str(source)))
    hot, leading = {"a"}, {"a"}
    while True:
        before = len(hot) + len(leading) + len(makers)
        makers |= {name for name, source in aliases if source in makers}
        leading |= hot | {
            name
            for name, source in aliases
            if source in leading or (source.endswith(RESULT) and source[:-2] in leading & makers)
        }
        hot |= {str(one) for one, other in said("call") if other in hot}
        hot |= {str(one) for one, other in said("hand") if other in hot & functions}
        hot |= {name for name in leading if name in called}
        if len(hot) + len(leading) + len(makers) == before:
            return hot


def learn(reach: Reach, known: list[Fact]) -> None:
    for kind, fact in known:
        getattr(reach, kind)(*fact)


@pytest.mark.parametrize("seed", range(200))
def test_it_is_what_the_definition_says_in_any_order(seed: int) -> None:
    known = list(facts(seed))
    reach = Reach()
    reach.heat("a")
    learn(reach, random.Random(seed + 1).sample(known, len(known)))

    assert reach.hot.all() == hot_by_definition(known)


@pytest.mark.parametrize("seed", range(200))
def test_what_is_above_adds_to_what_is_below_and_leaves_it_as_it_is(seed: int) -> None:
    known = list(facts(seed))
    half = len(known) // 2
    below = Reach()
    below.heat("a")
    learn(below, known[:half])
    alone = below.hot.all(), below.leading.all(), below.makers.all()

    above = below.above()
    learn(above, known[half:])

    assert above.hot.all() == hot_by_definition(known)
    assert (below.hot.all(), below.leading.all(), below.makers.all()) == alone
    learn(below, known[half:])
    assert below.hot.all() == above.hot.all()
