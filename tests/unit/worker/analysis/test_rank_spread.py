"""Names of the whole script that values of ranks may come to."""

import ast

import pytest

from recoverrun.worker.analysis import rank_spread
from recoverrun.worker.analysis.rank_flow import ASKED
from recoverrun.worker.analysis.rank_spread import Spread
from recoverrun.worker.rewriting.loop_transformer import instrument
from tests.unit.call_graphs import graph_of

METERS = """
def mean_of(value):
    return reduced(value)  # value

def reduced(value):
    return all_reduce(value)  # within

def evaluate(model, loader):
    total = 0
    for x in loader:
        total += model(x)
    return all_reduce(total)  # evaluated

def main(model, loader, optimizer):
    for epoch in range(3):
        total, meter = 0, Meter()
        for x in loader:
            loss = model(x)
            loss.backward()
            optimizer.step()
            total += loss.item()
            all_reduce(loss)  # of one step
        mean = [total / len(loader)]
        all_reduce(
            mean,  # mean
        )
        if all_reduce(total):  # test
            break
        mean_of(mean[0])

class Meter:
    def update(self, value):
        self.sum += value

    def spread(self):
        return all_reduce([self.sum])  # meter
"""


@pytest.mark.parametrize(
    ("differing", "lines"), [("total", {"mean", "test", "value", "within"}), ("sum", {"meter"})]
)
def test_a_value_comes_to_the_lines_that_read_what_is_made_of_it(
    differing: str, lines: set[str]
) -> None:
    tree = ast.parse(METERS)
    loops = instrument(ast.parse(METERS), "t.py", graph_of(tree).backward_names()).loops
    marked = {
        line.partition("#")[2].strip(): number
        for number, line in enumerate(METERS.splitlines(), 1)
        if "#" in line
    }

    spread = Spread(loops, [differing], {"t.py": tree})

    assert {mark for mark, line in marked.items() if spread.enters("t.py", line)} == lines


def test_a_line_of_another_file_reads_none_of_it() -> None:
    assert not Spread([], ["total"], {"t.py": ast.parse("total")}).enters("other.py", 1)


# --------------------------------------------------------------------------- what a call is given


CALLED = """
def batches(rows, seed):
    yield rows[seed]

def train(model, seed):
    for x in batches(model.rows, seed):
        model(x)

def main(model, rows):
    {before}
    for epoch in range(3):
        {call}
"""


def _gives(call: str, before: str = "pass", differing: str = "rank") -> bool:
    tree = ast.parse(CALLED.format(call=call, before=before))
    return Spread((), {*differing.split(), *ASKED}, {"t.py": tree}).gives("batches")


@pytest.mark.parametrize(
    ("call", "before"),
    [
        ("batches(rows, epoch * rank)", "pass"),
        ("batches(rows, seed=epoch * dist.get_rank())", "pass"),
        ("batches(rows, epoch * int(os.environ['RANK']))", "pass"),
        ("batches(rows, shift + epoch)", "shift = 2 * args.rank"),
        ("train(model, epoch * place)", "place = dist.get_rank()"),
        ("self.feed.batches(rows[rank::2], epoch)", "pass"),
    ],
)
def test_a_call_that_may_be_given_what_is_a_ranks_own(call: str, before: str) -> None:
    assert _gives(call, before)


@pytest.mark.parametrize(
    ("call", "before"),
    [
        ("batches(rows, epoch)", "torch.manual_seed(rank)"),
        ("batches(rows, 10 * epoch + seed)", "seed = args.seed"),
        ("batches(rows.to(device), epoch)", "device = f'cuda:{rank}'"),
        ("train(model, epoch)", "name = rank"),
    ],
)
def test_a_call_that_is_given_the_same_on_all_ranks(call: str, before: str) -> None:
    assert not _gives(call, before)


def test_a_function_that_is_called_by_no_such_name_may_be_given_anything() -> None:
    tree = ast.parse("make = batches\nmake(rank)")

    assert Spread((), ASKED, {"t.py": tree}).gives("batches")


def test_of_too_many_functions_all_is_taken_for_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_spread, "MOST_FUNCTIONS", 1)

    assert _gives("batches(rows, epoch)")


FED = """
def batches(rows, rank):
    yield rows[rank]

def main(rows, model):
    rank = dist.get_rank()
    mine = rows[rank::2]
    others = rows
    for x in batches(rows, rank):
        model(x).backward()
"""


def test_a_variable_where_a_loop_is_may_come_of_the_rank() -> None:
    tree = ast.parse(FED)
    (loop,) = instrument(ast.parse(FED), "t.py", graph_of(tree).backward_names()).loops
    spread = Spread((), ASKED, {"t.py": tree})

    found = [name for name in ("mine", "rank", "others", "rows") if spread.reaches(loop, [name])]

    assert found == ["mine", "rank"]  # not the parameters of `batches`
