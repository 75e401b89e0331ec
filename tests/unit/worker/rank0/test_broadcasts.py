"""The survivor that may speak for a lost rank 0 in a broadcast of the script."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ft_collectives.process_group.elastic import ElasticGroup
from recoverrun.reports.history import History
from recoverrun.worker.instrumentation import Lone
from recoverrun.worker.rank0.broadcasts import Broadcasts, _is
from recoverrun.worker.tracking.rank0_gate import Rank0Gate

HERE = __file__


class Runtime:
    active = True
    acting_rank = None

    def __init__(self, rank: int) -> None:
        self.gate = Rank0Gate(rank)


def world(live: tuple[int, ...], rank: int) -> tuple[Broadcasts, ElasticGroup, Runtime]:
    """Three replicas of one rank each; ours is `rank`, and `live` are left."""
    runtime = Runtime(rank)
    view = SimpleNamespace(live=live, live_ranks=live)
    layout = SimpleNamespace(place=lambda one: (one, 0), replicas=((0,), (1,), (2,)))
    env = SimpleNamespace(rank=rank)
    session: Any = SimpleNamespace(runtime=runtime, view=view, layout=layout, env=env)
    group: Any = SimpleNamespace(ranks=(0, 1, 2), fabric=SimpleNamespace(view=view))
    return Broadcasts(session), group, runtime


def asked(roots: Broadcasts, group: ElasticGroup, root: int = 0, **places: tuple[str, ...]) -> bool:
    """Has this rank done to `flag` what rank 0 does, by what is written in this function?"""
    flag = torch.zeros(3)
    frame = sys._getframe()
    runtime: Any = roots._worker.runtime
    for written in places.values():
        runtime.gate.places[f"{HERE}:{frame.f_lineno}"] = Lone(written, ())
    return roots.does(frame, flag[1:], group, root)


def told(roots: Broadcasts, group: ElasticGroup, failed: tuple[str, ...] = ()) -> bool:
    """The same of a list, sent by a helper; `failed` may have been changed by what failed here."""
    said = [True]
    line, runtime = sys._getframe().f_lineno, roots._worker.runtime
    runtime.gate.places[f"{HERE}:{line}"] = Lone(("said",), ())
    runtime.gate.places[f"{HERE}:{line + 1}"] = Lone((), (), (), failed)
    runtime.gate.left = {f"{HERE}:{line + 1}"} if failed else set()
    return (lambda sent: roots.does(sys._getframe(), sent, group, 0))(said)


def test_the_deputy_speaks_of_what_it_writes_in_the_place_of_rank_0() -> None:
    roots, group, _ = world(live=(1, 2), rank=1)

    assert asked(roots, group, here=("flag",))
    assert not asked(roots, group, here=("other",))
    assert not asked(roots, group, root=2, here=("flag",))


@pytest.mark.parametrize(("live", "rank"), [((0, 1, 2), 1), ((1, 2), 2)])
def test_nobody_else_does(live: tuple[int, ...], rank: int) -> None:
    roots, group, _ = world(live, rank)

    assert not asked(roots, group, here=("flag",))


def _given(
    roots: Broadcasts, group: ElasticGroup, best: Any, *, other: Any = None, in_tensor: bool = False
) -> bool:
    """The same of what a helper puts into a list; `best` and `other` are rank 0's."""
    frame, runtime = sys._getframe(), roots._worker.runtime
    runtime.gate.places[f"{HERE}:{frame.f_lineno}"] = Lone(("best", "other"), ())

    def tell(value: Any) -> bool:
        said = torch.tensor([value]) if in_tensor else [value]
        return roots.does(sys._getframe(), said, group, 0)

    if other is None:
        return tell(best)
    return tell(0.5)  # the same object, by chance


@pytest.mark.parametrize("best", [0.25, None, True, [1, 2], {"loss": 0.5}])
def test_the_deputy_speaks_of_what_a_helper_puts_into_a_list(best: Any) -> None:
    roots, group, _ = world(live=(1, 2), rank=1)

    assert _given(roots, group, best)
    assert not _given(roots, group, best, other=0.5)


@pytest.mark.parametrize("best", [0.1, 7, True])
def test_the_deputy_speaks_of_a_number_that_a_helper_puts_into_a_tensor(best: Any) -> None:
    roots, group, _ = world(live=(1, 2), rank=1)

    assert _given(roots, group, best, in_tensor=True)
    assert not _given(roots, group, best, other=0.5, in_tensor=True)


def test_the_deputy_speaks_of_objects_that_it_decides_even_through_a_helper() -> None:
    roots, group, _ = world(live=(1, 2), rank=1)

    assert told(roots, group)
    assert told(roots, group, failed=("bar",))
    assert not told(roots, group, failed=("said",))


@pytest.mark.parametrize("kept", ["missed", "undecided", "left"])
def test_not_where_rank_0_was_lost_in_the_middle_or_its_deputy_failed(kept: str) -> None:
    roots, group, runtime = world(live=(1, 2), rank=1)
    assert asked(roots, group, here=("flag",))

    getattr(runtime.gate, kept).update(runtime.gate.places)

    assert not asked(roots, group)


def test_views_are_the_same_memory_and_empty_tensors_are_none() -> None:
    whole = torch.ones(4)

    assert _is(whole, whole[2:].view(2, 1))
    assert not _is(whole, whole.clone())
    assert not _is(torch.zeros(0), torch.zeros(0))
    assert not _is([1], whole)
    assert not _is([1], [1])
    assert not _is(1, 1)


@pytest.mark.parametrize(
    ("done", "exact", "steered", "noted"),
    [(True, True, 1, 0), (True, False, 0, 1), (False, True, 0, 1)],
)
def test_what_the_deputy_makes_and_sends_steers_the_run(
    done: bool, exact: bool, steered: int, noted: int
) -> None:
    """It lacks what rank 0 remembered. What all survivors hold alike does not."""
    roots, group, _ = world(live=(1, 2), rank=1)
    said: list[str] = []
    notices: list[str] = []
    worker: Any = roots._worker
    worker.guarantee = SimpleNamespace(exact=exact, steer=said.append)
    worker.reporter = SimpleNamespace(notice=notices.append)
    site: Any = SimpleNamespace(substitute=1)

    for _ in range(2):
        roots.tell_substitute(site, sys._getframe(), group, 0, done=done)

    assert (len(said), len(notices)) == (steered, noted)
    for words in said:
        history = History(promise="exact-samples", steered=words)
        assert history.promised.startswith("exact-samples; steered by test_broadcasts.py:")
