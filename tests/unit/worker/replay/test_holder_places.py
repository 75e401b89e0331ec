"""An object is looked for again where it was found."""

import textwrap
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.constant_leaves import Leaf
from recoverrun.worker.replay.holder_places import (
    RequestedValues,
    first_name,
    has_moved,
    last_name,
    names_of,
)
from recoverrun.worker.replay.rank_constants import RankConstants

OLD, NEW = [torch.zeros(2)], [torch.ones(2)]


def _draws(rows: list[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    return lambda: rows


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
        ("Feed.rows", {"Feed": type("Feed", (), {"rows": NEW})}),
        ("draw.rows", {"draw": _draws(NEW)}),
        ("textwrap.rows", {}),  # of a module
    ],
)
def test_another_object_is_there_now(
    path: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(textwrap, "rows", NEW, raising=False)

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
        ("Feed.rows", {"Feed": type("Feed", (), {"rows": OLD})}),
        ("draw.rows", {"draw": _draws(OLD)}),
    ],
)
def test_it_is_there_or_nobody_can_tell(path: str, names: dict[str, Any]) -> None:
    assert not has_moved(path, id(OLD), names)


def test_what_a_thread_has_of_its_own_is_where_it_was() -> None:
    local = threading.local()
    local.rows = OLD
    owner = id(local.__dict__)  # what the object graph shows of it

    assert not has_moved("feed.local", owner, {"feed": SimpleNamespace(local=local)})
    assert has_moved("feed.local", owner, {"feed": SimpleNamespace(local=threading.local())})


def test_an_object_is_known_by_its_attributes() -> None:
    feed = SimpleNamespace(at=1)

    assert not has_moved("feed", id(vars(feed)), {"feed": feed})
    assert has_moved("feed", id(vars(feed)), {"feed": SimpleNamespace(at=1)})


def test_names_at_the_ends_of_a_path() -> None:
    assert first_name("__main__.feed.rows[3]") == "feed"
    assert last_name("feed.rows[3]['a.b']") == "rows"
    assert last_name("items[5].x") == "x"


@pytest.mark.parametrize(
    ("path", "unnamed", "names"),
    [
        ("feed.at", (), ("at",)),
        ("feed.at", ("feed",), ("at", "feed")),
        ("util.place.data.at", ("util.place", "util.place.data"), ("at", "data", "place")),
        ("feed.rows[3]", (), ("rows",)),
        ("feed.rows[3].at", ("feed.rows",), ("at",)),
        ("pick['off=']", ("pick",), ("off", "pick")),
        ("pick.keywords.off", ("pick", "pick.keywords"), ("off", "keywords", "pick")),
        ("by[(1, 2)]", ("by",), ("by",)),
        ("rows", (), ("rows",)),
    ],
)
def test_what_a_container_or_a_function_holds_is_called_as_that_is(
    path: str, unnamed: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert names_of(path, unnamed) == names


def _asked(
    variables: dict[str, Any],
    reads: tuple[str, ...] = ("rows",),
    written: tuple[str, ...] = (),
    gone_over: tuple[str, ...] = (),
) -> RequestedValues:
    return RequestedValues(variables, set(reads), set(written), set(gone_over))


def _differing(place: str) -> RankConstants:
    """A rank constant that is the entry of a list which was found at `place`."""
    names = names_of(f"{place}[0]", {place})
    leaf = Leaf(f"{place}[0]", {0: OLD[0]}, 0, owner=id(OLD), place=place, names=names)
    constants = RankConstants()
    constants._own = [(leaf, leaf.digest)]
    constants._theirs = {1: [NEW[0]]}
    return constants


def test_a_list_that_was_made_anew_is_no_constant_of_a_rank() -> None:
    feed = SimpleNamespace(rows=NEW)

    with (
        pytest.raises(NotReplayable, match=r"feed.rows\[0\] differs between ranks"),
        _differing("feed.rows").of(1, _asked({"feed": feed})),
    ):
        pass


@pytest.mark.parametrize(
    "asked",
    [
        _asked({}),
        _asked({"feed": None}, reads=("other",)),
        _asked({"feed": None}, written=("feed",)),
        _asked({"feed": None}, written=("rows",)),
        _asked({"feed": None}, gone_over=("feed.rows",)),
    ],
)
def test_what_contexts_hold_or_nobody_reads_or_a_microbatch_makes_may_move(
    asked: RequestedValues,
) -> None:
    with _differing("feed.rows").of(1, asked):
        pass


def test_a_dict_of_a_module_that_was_made_anew_is_no_constant_of_a_rank() -> None:
    leaf = Leaf("util.at", {"at": 1}, "at", True, owner=7, place="util", names=("at", "util"))
    constants = RankConstants()
    constants._own, constants._theirs = [(leaf, leaf.digest)], {1: [2]}

    with (
        pytest.raises(NotReplayable, match="util.at differs between ranks"),
        constants.of(1, RequestedValues({"util": {}}, None, set(), set())),
    ):
        pass


def test_a_loop_over_another_path_gives_no_items() -> None:
    asked = _asked({"feed": None}, gone_over=("feed.row", "rows"))

    assert asked.wants(("rows",), "feed.rows")
    assert not asked.wants(("rows",), "__main__.rows[1]")
