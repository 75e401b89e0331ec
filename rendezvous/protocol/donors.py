"""The member that gives a newcomer its state, as both of them know by themselves.

It stands at the top of the step, as all members do, and packs its state meanwhile. Nobody waits
for that but who is to have it: the view may begin, and the others go on, before it is made. So the
newcomer waits for a word of its donor. If that one is lost before, none comes: the wait ends with
the first view that is without it.
"""

from rendezvous.protocol.layout import Layout
from rendezvous.protocol.views import View


def donor_of(layout: Layout, live: tuple[int, ...], rank: int) -> int:
    """The rank that gives `rank` its place, where the replicas `live` are there before it comes.

    It holds the same shard; donors are spread over these replicas.
    """
    slot, shard = layout.place(rank)
    return layout.replicas[live[(slot + shard) % len(live)]][shard]


def donor_in(layout: Layout, view: View, rank: int) -> int:
    """The rank that gives `rank` its place, which takes part from `view` on."""
    joined = set(view.joined)
    before = tuple(slot for slot in view.live if joined.isdisjoint(layout.replicas[slot]))
    return donor_of(layout, before, rank)


def may_tell(donor: int, view: View) -> bool:
    """True if a word of `donor` may come, where `view` is the newest one.

    Nobody else takes part before the newcomer's first step is committed, so a donor that is lost
    is in no view until then.
    """
    return donor in view.live_ranks
