"""An object is looked for again where it was found."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.holder_places import first_name, has_moved, last_name
from recoverrun.worker.replay.rank_constants import Leaf, RankConstants

OLD, NEW = [torch.zeros(2)], [torch.ones(2)]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("rows", {"rows": NEW}),
        ("__main__.rows", {"rows": NEW}),
        ("feed.rows", {"feed": SimpleNamespace(rows=NEW)}),
        ("by_name.train", {"by_name": {}}),
        ("by_name.train", {"by_name": {"train": NEW}}),
        ("parts[1]", {"parts": [OLD, NEW]}),
        ("parts[1]", {"parts": [OLD]}),
        ("parts[2][0]", {"parts": {2: (NEW,)}}),
    ],
)
def test_another_object_is_there_now(path: str, names: dict[str, Any]) -> None:
    assert has_moved(path, id(OLD), names)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("rows", {"rows": OLD}),
        ("feed.rows", {"feed": SimpleNamespace(rows=OLD)}),
        ("parts[1]", {"parts": [NEW, OLD]}),
        ("rows", {}),  # a variable that is not asked for
        ("parts[a.b]", {"parts": {"a.b": NEW}}),  # a way that is not followed
        ("count.rows", {"count": 3}),
        ("feed.rows", {"feed": SimpleNamespace()}),
    ],
)
def test_it_is_there_or_nobody_can_tell(path: str, names: dict[str, Any]) -> None:
    assert not has_moved(path, id(OLD), names)


def test_an_object_is_known_by_its_attributes() -> None:
    feed = SimpleNamespace(at=1)

    assert not has_moved("feed", id(vars(feed)), {"feed": feed})
    assert has_moved("feed", id(vars(feed)), {"feed": SimpleNamespace(at=1)})


def test_names_at_the_ends_of_a_path() -> None:
    assert first_name("__main__.feed.rows[3]") == "feed"
    assert last_name("feed.rows[3]['a.b']") == "rows"
    assert last_name("items[5].x") == "x"


def _differing(place: str) -> RankConstants:
    """A rank constant that is the entry of a list which was found at `place`."""
    leaf = Leaf(f"{place}[0]", {0: OLD[0]}, 0, owner=id(OLD), place=place)
    constants = RankConstants()
    constants._own = [(leaf, leaf.digest)]
    constants._theirs = {1: [NEW[0]]}
    return constants


def test_a_list_that_was_made_anew_is_no_constant_of_a_rank() -> None:
    feed = SimpleNamespace(rows=NEW)

    with (
        pytest.raises(NotReplayable, match=r"feed.rows\[0\] differs between ranks"),
        _differing("feed.rows").of(1, {"feed": feed}, {"rows"}),
    ):
        pass


@pytest.mark.parametrize(("names", "reads"), [({}, {"rows"}), ({"feed": None}, {"other"})])
def test_what_contexts_hold_or_nobody_reads_may_move(
    names: dict[str, Any], reads: set[str]
) -> None:
    with _differing("feed.rows").of(1, names, reads):
        pass
