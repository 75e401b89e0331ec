"""The variables that a launcher gives a rank, for code that reads them in the midst of training."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_rank(rank: int) -> Iterator[None]:
    """Name `rank` in `os.environ`, and its place on its node if all nodes are alike."""
    before = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK") if name in os.environ}
    os.environ.update(_of(rank, before))
    try:
        yield
    finally:
        os.environ.update(before)


def _of(rank: int, own: dict[str, str]) -> dict[str, str]:
    if "RANK" not in own:
        return {}
    size, local = int(os.environ.get("LOCAL_WORLD_SIZE", 0)), int(own.get("LOCAL_RANK", -1))
    alike = size > 0 and local == int(own["RANK"]) % size
    return {"RANK": str(rank)} | ({"LOCAL_RANK": str(rank % size)} if alike else {})
