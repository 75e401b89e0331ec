"""Names through which values that ranks do not have in common come into an inner loop."""

import ast
from textwrap import dedent, indent

import pytest

from recoverrun.worker.analysis import rank_flow
from recoverrun.worker.analysis.rank_flow import reaches
from recoverrun.worker.rewriting.loop_transformer import instrument
from tests.unit.call_graphs import graph_of

LOOPS = """
def main(rank, world, loader, model, optimizer, log):
    for step in range(100):
{before}
        for micro in range(k):
            loss = model(next(loader)) / k
            loss.backward()
        optimizer.step()
{after}
"""


def _reaches(source: str, differing: str = "rank") -> bool:
    tree = ast.parse(source)
    names = graph_of(tree).backward_names()
    loops = sorted(instrument(ast.parse(source), "t.py", names).loops, key=lambda one: one.line)
    outer, inner = loops[0], loops[-1]
    assert outer is not inner
    return reaches(outer, inner, frozenset(differing.split()), {"t.py": tree})


def _script(before: str, after: str = "pass", more: str = "") -> str:
    text = LOOPS.format(
        before=indent(dedent(before).strip(), " " * 8), after=indent(after, " " * 8)
    )
    return dedent(more) + text


@pytest.mark.parametrize(
    "before",
    [
        "k = 1 + (step == 4 and rank == world - 1)",
        "k = 2 if rank else 1",
        "last = rank == world - 1\nk = 1\nif last: k = 2",
        "first, k = step, 1 + rank",
        "sizes = [1]\nsizes.append(rank)\nk = sizes[-1]",
        "k = 1\nfor each in range(rank): k = each",
        "with log(rank) as k: pass",
        "k = 1\nk += step == 4 and rank",
        "if (k := 1 + rank): pass",
        "import torch.distributed as dist\nk = 1 + (dist.get_rank() == 1)",
        "import os\nk = 1 + (os.environ['RANK'] == '1')",
        "if rank == 1 and step == 4: continue\nk = 1\nif rank: loader = iter([])",
    ],
)
def test_what_is_computed_from_the_rank_comes_to_the_loop(before: str) -> None:
    assert _reaches(_script(before))


@pytest.mark.parametrize(
    "before",
    [
        "k = 1 + (step == 4)",
        "k = 2\nif rank == 0: log(step)",
        "k = 2\nname = f'rank {rank}'\nlog(name)",
        "k = 2\nif rank == 0 and step % 10 == 0:\n    best = log(model)",
        "k = 2\nbar = log(rank)\nbar.update()",
    ],
)
def test_what_is_only_told_does_not(before: str) -> None:
    assert not _reaches(_script(before))


def test_a_function_of_a_module_that_was_given_it_writes_to_no_module() -> None:
    script = _script("k = 2\nbox.tensor(rank)").replace("model(next", "box.relu(next")

    assert _reaches(script)
    assert not _reaches(f"import torch as box\n{script}")


def test_what_comes_after_the_loop_is_of_no_interest() -> None:
    assert not _reaches(_script("k = 2", after="k = rank"))


def test_a_loop_that_only_some_ranks_come_to() -> None:
    source = """
    def main(rank, model, data):
        for step in range(9):
            if rank == 0 or step < 5:
                for batch in data:
                    model(batch).backward()
    """
    assert _reaches(dedent(source))


def test_calls_are_followed() -> None:
    counted = """
    class Plan:
        def __init__(self, rank): self.rank = rank
        def count(self, step): return 1 + (step == 4 and self.rank == 1)
    """
    assert _reaches(_script("k = log.count(step)", more=counted))
    assert not _reaches(_script("k = log.length(step)", more=counted), differing="")


def test_attributes_that_a_call_writes() -> None:
    kept = """
    class Plan:
        def prepare(self, step): self.count = 1 + (step == 4 and self.rank == 1)
    """
    assert _reaches(_script("log.prepare(step)\nk = log.count", more=kept))


def test_of_too_many_functions_it_is_taken_for_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    called = "def one(): two()\ndef two(): pass\n"
    script = _script("k = 2\none()", more=called)
    assert not _reaches(script)

    monkeypatch.setattr(rank_flow, "MOST_FUNCTIONS", 1)
    assert _reaches(script)


def test_a_property_is_a_call() -> None:
    kept = """
    class Plan:
        @property
        def count(self): return 1 + self.rank
    """
    assert _reaches(_script("k = log.count", more=kept))


def test_local_names_of_other_functions_are_others() -> None:
    evaluation = """
    def evaluate(log):
        k = log.rank
        return k
    """
    assert not _reaches(_script("k = 2\nlost = evaluate(log)", more=evaluation))


def test_a_function_within_the_function_reads_its_names() -> None:
    source = """
    def main(rank, model, data):
        k = 1
        def micros():
            for micro in range(k):
                model(data[micro]).backward()
        for step in range(9):
            k = 1 + (rank == 1 and step == 4)
            micros()
    """
    tree = ast.parse(dedent(source))
    names = graph_of(tree).backward_names()
    loops = {one.line: one for one in instrument(ast.parse(dedent(source)), "t", names).loops}
    assert reaches(loops[7], loops[5], {"rank"}, {"t": tree})


def test_the_inner_loop_in_another_function() -> None:
    source = """
    class Trainer:
        def fit(self):
            for step in range(9):
                self.train(step, COUNT)
        def train(self, step, count):
            self.log(count)
            for micro in range(count):
                self.model(self.data[micro]).backward()
            self.seen = self.rank
    """
    told = source.replace("COUNT", "1 + (self.rank == 1 and step == 4)")
    plain = source.replace("COUNT", "2")
    for text, expected in ((told, True), (plain, False)):
        tree = ast.parse(dedent(text))
        names = graph_of(tree).backward_names()
        loops = {one.line: one for one in instrument(ast.parse(dedent(text)), "t", names).loops}
        assert reaches(loops[4], loops[8], {"rank"}, {"t": tree}) is expected


def test_what_a_model_reads_as_it_is_called() -> None:
    scaled = """
    class Net:
        def forward(self, x): return x * self.scale
    """
    assert _reaches(_script("k = 2\nmodel.scale = 1 + (step > 4 and rank)", more=scaled))
    assert not _reaches(_script("k = 2\nmodel.name = rank", more=scaled))
