"""All that a snapshot looks at: what the script holds, and what is in its data sets and samplers,
whoever has written their classes. A data set that is read by row numbers may change as well: by a
curriculum, a buffer of replays, or labels that training corrects.
"""

from collections.abc import Iterable
from types import FrameType

from torch.utils.data import DataLoader, Dataset, Sampler

from recoverrun.worker.arrival import plain_values
from recoverrun.worker.context.object_graph import Holdings, Resting

LOOKED_INTO: dict[type, tuple[str, ...]] = {
    Dataset: (),
    Sampler: (),
    DataLoader: ("dataset", "sampler", "batch_sampler", "collate_fn"),
}
"""Classes of libraries whose objects are looked into, and the attributes; () for all of them."""


def found(
    frames: Iterable[FrameType],
    own: frozenset[str],
    resting: Resting | None = None,
    *,
    last: frozenset[str],
) -> Holdings:
    """All of it; see `plain_values.found`."""
    return plain_values.found(frames, own, resting, last=last, looked_into=LOOKED_INTO)
