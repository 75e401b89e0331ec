"""Values that come of the rank and of the turn of a loop at once."""

import ast
import textwrap

import pytest

from recoverrun.worker.analysis import moving_shares
from recoverrun.worker.analysis.moving_shares import BOTH, MOVES, OWN, MovingShares
from recoverrun.worker.rewriting.loop_transformer import instrument
from tests.unit.call_graphs import graph_of

SCRIPT = """
rank, world = dist.get_rank(), dist.get_world_size()
SEED = 3
PERMUTED = random.sample(files, 8)

class Lines(IterableDataset):
    def __init__(self, names, seed=0, *, place=None):
        self.names, self.seed = names, seed
        self.at = place

    def turn(self, first):
        self.order = first

def share(items, first):
    return items[first::world]

def main(model, files):
    rng = np.random.default_rng(0)
    for epoch in range(3):
        {before}
        made = {made}
        for x in DataLoader(made):
            model(x).backward()
"""


def labels(made: str, before: str = "pass", others: str = "") -> MovingShares:
    before = before.replace("\n", "\n" + 8 * " ")
    text = SCRIPT.format(made=made, before=before) + textwrap.dedent(others)
    tree = ast.parse(text)
    found = instrument(ast.parse(text), "t.py", graph_of(tree).backward_names()).loops
    outer = [loop for loop in found if "epoch" in loop.targets]
    return MovingShares(outer, ["rank"], {"t.py": tree})


def of_names(made: str, before: str = "pass") -> int:
    return labels(made, before).held(["Lines"], "names")


@pytest.mark.parametrize(
    ("made", "before"),
    [
        ("Lines(files[(rank + epoch) % world :: world])", "pass"),
        ("Lines(files[first::world])", "first = (rank + epoch) % world"),
        ("Lines(names=share(files, first))", "first = (rank + epoch) % world"),
        ("Lines(shuffled(files, epoch)[rank::world])", "pass"),
        ("Lines(files[first[rank] :: world])", "first = rng.permutation(world)"),
        ("Lines(*[files[rank + epoch]])", "pass"),
        ("Lines(files[at])", "if epoch:\n    at = rank\nelse:\n    at = 0"),
        ("Lines(files[at])", "at = rank if epoch else 0"),
        ("Lines(lambda: files[first])", "first = (rank + epoch) % world"),
    ],
)
def test_what_is_computed_of_the_rank_and_of_the_turn_is_unknown(made: str, before: str) -> None:
    assert of_names(made, before) & BOTH


@pytest.mark.parametrize(
    ("made", "before", "label"),
    [
        ("Lines(files[rank::world])", "pass", OWN),
        ("Lines(files[rank::world], epoch)", "pass", OWN),
        ("Lines(share(files, rank), seed=epoch)", "pass", OWN),
        ("Lines(PERMUTED[rank::world])", "pass", OWN),
        ("Lines(files[epoch % world :: world])", "pass", MOVES),
        ("Lines(files[rank])", "while epoch < 2:\n    late = epoch", OWN),
        ("Lines(lambda: files[rank + epoch])", "pass", OWN | MOVES),
        ("Lines([files[epoch] for epoch in range(rank, 9)])", "pass", OWN),
    ],
)
def test_what_comes_of_one_of_them_or_of_each_by_itself_is_known(
    made: str, before: str, label: int
) -> None:
    assert of_names(made, before) == label


def test_each_attribute_has_what_its_own_parameter_was_given() -> None:
    found = labels("Lines(files[rank::world], 10 * epoch + rank, place=epoch)")

    held = {name: found.held(["Lines"], name) for name in ("names", "seed", "at")}

    assert held == {"names": OWN, "seed": OWN | MOVES | BOTH, "at": MOVES}


def test_a_class_without_a_constructor_of_its_own_has_that_of_its_base() -> None:
    others = """
    class Own(Lines):
        pass

    class Given(Lines):
        def __init__(self, first, seed):
            super().__init__(first, seed)
    """
    for kind in ("Own", "Given"):
        found = labels(f"{kind}(rank + epoch, 2)", others=others)

        assert found.held([kind, "Lines"], "names") & BOTH
        assert not found.held([kind, "Lines"], "seed")


def test_what_is_written_to_an_object_later_counts_too() -> None:
    found = labels("Lines(files)", "made.turn(rank + epoch)")

    assert found.changed("order") & BOTH and found.held(["Lines"], "order") & BOTH
    assert not found.changed("names")


def test_a_function_reads_variables_around_it() -> None:
    made = "DataLoader(files, collate_fn=lambda rows: [row + first for row in rows])"
    line = next(n for n, text in enumerate(SCRIPT.splitlines(), 1) if "{made}" in text)

    moving = labels(made, "first = rank + epoch").reads("t.py", line, "<lambda>", ["first"])
    resting = labels(made, "first = rank + SEED").reads("t.py", line, "<lambda>", ["first"])
    default = labels("Lines(lambda row, at=rank + epoch: row + at)").reads(
        "t.py", line, "<lambda>", []
    )
    other = labels(made, "first = rank + epoch").reads("t.py", line, "<lambda>", ["files"])

    assert not other and moving & BOTH and default & BOTH and resting == OWN


def test_methods_of_a_class_read_variables_of_their_module() -> None:
    others = """
    place = 0

    def turn(epoch):
        global place
        place = rank + epoch

    class Reads(Lines):
        def __getitem__(self, number):
            return self.names[number + place]
    """

    assert labels("turn(epoch)", others=others).methods(["Reads"], ["place"]) & BOTH
    assert not labels("turn(0)", others=others).methods(["Reads"], ["place"]) & BOTH


def test_an_object_that_changes_in_place_in_each_turn_moves() -> None:
    names = "names = deque(files[rank::world])"

    assert of_names("Lines(places)", "places = files[rank::world]\nplaces.reverse()") & BOTH
    assert of_names("Lines(places)", "places = files[rank::world]") == OWN
    assert labels("Lines(files)", f"{names}\nnames.rotate(1)").given("Lines") == 0


def test_of_what_calls_are_given_each_argument_counts_by_itself() -> None:
    assert labels("Subset(rows[rank], epoch)").given("Subset") == OWN | MOVES
    assert labels("Subset(rows, rank + epoch)").given("Subset") & BOTH


def test_of_expressions_that_are_too_deep_all_is_taken_for_granted() -> None:
    deep = labels(f"Lines({'f(' * 80}files{')' * 80})", others=f"x = {'-' * 900}1")

    assert deep.everywhere


def test_of_too_many_functions_all_is_taken_for_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving_shares, "MOST_FUNCTIONS", 1)

    found = labels("Lines(files)")

    assert found.held(["Lines"], "names") & BOTH and found.given("Lines") & BOTH
    assert not found.changed("names") and not found.methods(["Lines"], ["files"])
