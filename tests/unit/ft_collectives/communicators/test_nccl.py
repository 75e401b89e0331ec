"""Communicators on an accelerator, with a stand-in for NCCL (`nccl_stand_in`)."""

import threading

import pytest
import torch
from torch.distributed import HashStore

from ft_collectives.communicators import fabric as fabric_module
from ft_collectives.communicators import nccl
from ft_collectives.communicators.channel import Pending
from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.nccl import NcclChannel
from tests.unit.ft_collectives.communicators.nccl_stand_in import (
    OTHERS,
    Group,
    Mark,
    Rig,
    StandIn,
    make,
    view,
)

# --------------------------------------------------------------------------- without a loss


def test_a_bucket_is_summed_over_the_device() -> None:
    rig = Rig(StandIn("passes"))

    rig.reducer.finish(1)
    rig.reducer.deliver()

    assert rig.delivered[0].tolist() == [1.0 + OTHERS] * 4
    assert (rig.library.groups[0].place, rig.library.groups[0].size) == (0, 3)


def test_the_last_member_asks_no_communicator() -> None:
    rig = Rig(StandIn("passes"))

    rig.fabric.change(view(2, (0,)))
    rig.reducer.finish(rig.fabric.ready(rig.reducer.channel))
    rig.reducer.deliver()

    assert rig.delivered[0].tolist() == [1.0] * 4
    assert len(rig.library.groups) == 1


def test_an_operation_in_a_cuda_graph_is_an_error_of_the_script() -> None:
    library = StandIn("passes")
    rig = Rig(library)
    library.graph = "a protected collective cannot be part of a CUDA graph"

    with pytest.raises(RuntimeError, match="CUDA graph"):
        rig.reducer.finish(1)


# --------------------------------------------------------------------------- a loss


def test_a_new_view_aborts_what_hangs_and_takes_nothing_of_it() -> None:
    """The abort makes the operation pass, with garbage: it does not count."""
    rig = Rig(StandIn("hangs", "passes"))
    ended = rig.in_a_thread(1)
    rig.library.hanging.get(timeout=10)

    rig.fabric.change(view(2, (0, 2)))

    assert ended.get(timeout=10) == "superseded"
    assert rig.library.groups[0].aborted.wait(timeout=10)
    rig.reducer.finish(rig.fabric.ready(rig.reducer.channel))
    rig.reducer.deliver()
    assert rig.delivered[0].tolist() == [1.0 + OTHERS] * 4


def test_a_new_generation_has_a_communicator_of_its_own_members_and_store() -> None:
    rig = Rig(StandIn("passes"))
    rig.library.stores[0].set("id", "old")

    rig.fabric.change(view(2, (0, 2)))
    rig.fabric.ready(rig.reducer.channel)

    old, new = rig.library.groups
    assert (old.aborted.wait(timeout=10), new.aborted.is_set()) == (True, False)
    assert (new.place, new.size) == (0, 2)
    assert not rig.library.stores[1].check(["id"])


def test_staging_is_kept_until_the_stream_has_passed() -> None:
    rig = Rig(StandIn("hangs", "passes"))
    ended = rig.in_a_thread(1)
    rig.library.hanging.get(timeout=10)
    old = rig.library.groups[0]
    old.kernels_end = False  # the abort has returned; a kernel has not
    staging = rig.bucket.staging
    rig.fabric.change(view(2, (0, 2)))
    assert ended.get(timeout=10) == "superseded"

    rig.reducer.finish(rig.fabric.ready(rig.reducer.channel))

    assert rig.bucket.staging is not staging, "fresh memory, and the old one is not written to"
    assert [tensor is staging for tensor in rig.over.held_memory.look()] == [True]
    old.end_kernels()
    assert rig.over.held_memory.look() == []
    rig.reducer.deliver()
    assert rig.delivered[0].tolist() == [1.0 + OTHERS] * 4


def test_an_abort_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "ABORT_WITHIN_S", 0.0)
    rig = Rig(StandIn("hangs", "passes"))
    rig.library.groups[0].abort_may_end.clear()
    ended = rig.in_a_thread(1)
    rig.library.hanging.get(timeout=10)

    rig.fabric.change(view(2, (0, 2)))

    assert ended.get(timeout=10) == "superseded"
    rig.reducer.finish(rig.fabric.ready(rig.reducer.channel))
    assert rig.library.groups[0].aborted.wait(timeout=10)
    rig.library.groups[0].abort_may_end.set()  # its garbage goes where nobody reads any more
    rig.reducer.deliver()
    assert rig.delivered[0].tolist() == [1.0 + OTHERS] * 4


def test_a_second_loss_while_members_connect_ends_that_attempt() -> None:
    """The members of generation 2 never all come: what they began is aborted."""
    library = StandIn("passes")
    rig = Rig(library)
    library.greets = "hangs"
    rig.fabric.change(view(2, (0, 2)))
    assert library.hanging.get(timeout=10) is library.groups[1]
    library.greets = "passes"

    rig.fabric.change(view(3, (0, 1)))
    rig.reducer.finish(rig.fabric.ready(rig.reducer.channel))
    rig.reducer.deliver()

    assert library.groups[1].aborted.wait(timeout=10)
    assert rig.reducer.channel.members == (0, 1)
    assert rig.delivered[0].tolist() == [1.0 + OTHERS] * 4


def test_a_generation_that_ends_while_its_group_is_made_leaves_nothing_in_use() -> None:
    """Whoever ended it looked for communicators before there was this one."""
    library = StandIn("passes")

    assert NcclChannel(library).connect(1, HashStore(), 0, 3, lambda: False) is None

    assert library.groups[0].aborted.wait(timeout=10)


def test_an_abort_is_waited_for_before_something_new_is_made() -> None:
    library = StandIn("passes")
    over = NcclChannel(library)
    over.connect(1, HashStore(), 0, 3, lambda: True)
    old = library.groups[0]
    old.abort_may_end.clear()
    over.drop(before=2)
    assert old.aborted.wait(timeout=10)
    signature = []

    def wanted() -> bool:
        """CallSignature while it waits: then the abort comes to its end."""
        signature.append(len(library.groups))
        if len(signature) == 2:
            old.abort_may_end.set()
        return True

    assert over.connect(2, HashStore(), 0, 2, wanted) is not None

    assert signature[:2] == [1, 1]


# --------------------------------------------------------------------------- order of launch, abort


def test_an_abort_waits_for_a_launch_to_return() -> None:
    rig = Rig(StandIn("passes"))
    inside, may_go = threading.Event(), threading.Event()
    seen = []

    def slow(group: Group) -> Mark:
        inside.set()
        may_go.wait()
        seen.append(group.aborted.is_set())
        return Mark(passed=True)

    launching = threading.Thread(
        target=rig.over.launch, args=(rig.fabric.serving, rig.reducer.channel, 1, slow)
    )
    launching.start()
    inside.wait()
    rig.fabric.change(view(2, (0, 2)))
    may_go.set()
    launching.join(timeout=10)

    assert seen == [False]
    assert rig.library.groups[0].aborted.wait(timeout=10)


def test_nothing_begins_on_a_communicator_that_is_being_left() -> None:
    rig = Rig(StandIn("passes"))
    rig.over.drop(before=2)  # the view follows in a moment
    assert rig.library.groups[0].aborted.wait(timeout=10)

    with pytest.raises(Superseded):
        rig.over.launch(
            rig.fabric.serving, rig.reducer.channel, 1, lambda group: group.allreduce([])
        )


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [("fails", "NCCL: COMM_ERROR"), ("refuses", "NCCL error: remote process exited")],
)
def test_an_error_asks_for_a_new_meeting(
    monkeypatch: pytest.MonkeyPatch, behaviour: str, reason: str
) -> None:
    """Also one that is raised as the operation begins, inside the script's backward."""
    monkeypatch.setattr(fabric_module, "HINT_AFTER_S", 0.0)
    hints = []

    def on_hint(generation: int, words: str) -> None:
        hints.append((generation, words))
        rig.fabric.change(view(2))

    rig = Rig(StandIn(behaviour, "passes"), on_hint)

    rig.reducer.offer("weights", 1)
    with pytest.raises(Superseded):
        rig.reducer.finish(1)
    rig.reducer.finish(rig.fabric.ready(rig.reducer.channel))
    rig.reducer.deliver()

    assert hints == [(1, reason)]
    assert rig.delivered[0].tolist() == [1.0 + OTHERS] * 4


def test_members_that_cannot_connect_ask_for_a_new_meeting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fabric_module, "HINT_AFTER_S", 0.0)
    library = StandIn("passes")
    hints = []

    def on_hint(generation: int, words: str) -> None:
        hints.append((generation, words))
        library.greets = "passes"
        rig.fabric.change(view(3, (0, 2)))

    rig = Rig(library, on_hint)
    library.greets = "fails"
    rig.fabric.change(view(2, (0, 2)))

    assert rig.fabric.ready(rig.reducer.channel) == 3
    assert hints == [(2, "gradients0: NCCL: COMM_ERROR")]
    assert library.groups[1].aborted.wait(timeout=10)


def test_memory_of_an_operation_that_failed_as_it_began_is_never_used_again() -> None:
    crash, staging = Pending(on_device=nccl.FailedLaunch("no")), torch.ones(1)

    make().memory.hold([staging], crash)

    assert any(
        one is staging for held in nccl._left_behind if isinstance(held, list) for one in held
    )
