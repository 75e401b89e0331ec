"""Values that roots of broadcasts have sent at each place, in processes that come later."""

import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import torch

from ft_collectives.process_group.substitutes import CallSite, ObjectCallSite
from recoverrun.worker.arrival.learned import LEARNED
from recoverrun.worker.step.call_sites import CallSites

ZERO, ONE = torch.zeros(1), torch.ones(1)


def helper(sites: CallSites, kind: type[CallSite]) -> CallSite:
    return sites.at(sys._getframe(), kind)


def place(sites: CallSites, kind: type[CallSite] = CallSite) -> CallSite:
    """The same one in all processes: a thread of its own has no lines of a test on its stack."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(helper, sites, kind).result()


def come_later(heard: CallSites) -> CallSites:
    """The places of a process that is told what another one has heard."""
    row, sites = LEARNED["heard"], CallSites()
    told = msgpack.packb(row.read(parts(heard)), use_bin_type=True)
    row.put(parts(sites), msgpack.unpackb(told, raw=False))
    return sites


def parts(sites: CallSites) -> Any:
    return SimpleNamespace(worker=SimpleNamespace(call_sites=sites))


def test_each_place_that_calls_a_helper_is_another_one() -> None:
    sites = CallSites()

    first, again = (place(sites) for _ in range(2))

    assert first is again
    assert helper(sites, CallSite) is not first


@pytest.mark.parametrize("said", [ZERO, torch.empty(0), torch.ones(2, 2, dtype=torch.bfloat16)])
def test_one_that_comes_later_knows_what_a_root_always_sends(said: torch.Tensor) -> None:
    survivor = CallSites()
    for _ in range(2):
        place(survivor).hear(said, said)

    newcomer = come_later(come_later(survivor))

    usual = place(newcomer).usual_value.usual
    assert usual.dtype == said.dtype
    assert torch.equal(usual, said)


def test_objects_are_known_as_well() -> None:
    survivor, words = CallSites(), [1 << 70, "go", None]
    for _ in range(2):
        place(survivor, ObjectCallSite).usual_value.heard(words)

    assert place(come_later(survivor), ObjectCallSite).usual_value.usual == words


def test_what_has_varied_is_not_taken_for_steady_later() -> None:
    survivor = CallSites()
    for said in (ZERO, ONE):
        place(survivor).hear(ZERO, said)

    site = place(come_later(survivor))
    for _ in range(3):
        site.hear(ONE, ONE)

    assert site.usual_value.usual is None
    assert not site.known, "the other rank has not always held it"


def test_what_others_have_always_held_is_known_but_not_by_way_of_the_root() -> None:
    """A root compares nothing with what it sends."""
    survivor, root = CallSites(), CallSites()
    for said in (ZERO, ONE):
        place(survivor).hear(said, said)
        place(root).speak(said)

    assert place(come_later(survivor)).known
    assert not place(come_later(root)).known


def test_a_root_tells_what_it_always_sends() -> None:
    root = CallSites()
    for _ in range(2):
        place(root).speak(ZERO)

    assert place(come_later(root)).usual_value.usual == ZERO
