"""Work behind the last step that was left undone.

A loss costs nothing where a step follows: survivors finish that step, and one of them does what
rank 0 does alone from there on. Behind the last step there may be nobody left to do it: a final
checkpoint, say, that rank 0 had begun as the others had passed it by, or that its deputy could not
write. Such a job has not ended well, as under torchrun.
"""

from collections.abc import Sequence

from rendezvous.coordinator.losses import JobEnd, Loss, code_of
from rendezvous.coordinator.members import Membership
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.layout import Layout


def left_undone(losses: Sequence[Loss], members: Membership) -> JobEnd | None:
    """The verdict on a job whose scripts have ended, `losses` being those that no step has made
    good; None if all was done that is known of.
    """
    layout = members.layout
    if layout is None or not members.live:
        return None
    failed = [loss for loss in losses if loss.failed_by_itself]
    if failed:
        words = "what it had left to do may be missing"
        return _verdict(min(failed, key=lambda loss: loss.order), words)
    leads = _leader(layout, members.live)
    farewell = members.farewells.get(leads)
    led = _leader(layout, (*members.live, *(loss.slot for loss in losses)))
    if led != leads and (farewell is None or farewell.passed_by):
        where = "there" if farewell is None else f"at {farewell.passed_by}"
        words = f"what rank 0 does alone {where} may be missing"
        return _verdict(min(losses, key=lambda loss: loss.order), words)
    if farewell is not None and farewell.failed:
        words = f"rank {leads} failed after the last step, in the place of rank 0, at"
        return ExitCode.FAILED, f"{words} {farewell.failed}", leads
    return None


def _verdict(root: Loss, words: str) -> JobEnd:
    return code_of(root), f"{root.reason}, after the last step: {words}", root.root_rank


def _leader(layout: Layout, slots: Sequence[int]) -> int:
    """The rank that does rank 0's work among these replicas (`rank0.failover.is_deputy`)."""
    slot, shard = layout.place(0)
    return layout.replicas[slot if slot in slots else min(slots)][shard]
