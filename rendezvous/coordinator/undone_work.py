"""Work behind the last step that a lost rank has left undone.

A loss costs nothing where a step follows: survivors finish that step, and one of them does what
rank 0 does alone from there on. Behind the last step there may be nobody left to do it: a final
checkpoint, say, that rank 0 had begun as the others had passed it by. Such a job has not ended
well, as under torchrun.
"""

from collections.abc import Sequence

from rendezvous.coordinator.losses import Loss, Verdict, code_of
from rendezvous.coordinator.members import Membership
from rendezvous.protocol.layout import Layout


def left_undone(losses: Sequence[Loss], members: Membership) -> Verdict | None:
    """The verdict on a job whose scripts have ended, `losses` being those that no step has made
    good; None if all was done that is known of.
    """
    layout = members.layout
    if layout is None or not losses:
        return None
    failed = [loss for loss in losses if loss.failed_by_itself]
    root = min(failed or losses, key=lambda loss: loss.order)
    if failed:
        words = "after the last step: what it had left to do may be missing"
        return code_of(root), f"{root.reason}, {words}", root.root_rank
    live = set(members.live)
    led = _leader(layout, live | {loss.slot for loss in losses})
    leads = _leader(layout, live)
    place = members.passed_by.get(leads, "")
    if led == leads or not place:
        return None
    words = f"after the last step: what rank 0 does alone at {place} may be missing"
    return code_of(root), f"{root.reason}, {words}", root.root_rank


def _leader(layout: Layout, slots: set[int]) -> int:
    """The rank that does rank 0's work among these replicas (`rank0.failover.is_deputy`)."""
    slot, shard = layout.place(0)
    return layout.replicas[slot if slot in slots else min(slots)][shard]
