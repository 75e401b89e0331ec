"""The share of a node's memory that bays may have: of what is free, or so many bytes."""

import re
from dataclasses import dataclass

SHARE = 0.4

UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}

_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)([KMGT]?)(?:i?B)?")
_PERCENT = re.compile(r"(\d{1,3})%")


@dataclass(frozen=True, slots=True)
class Allowance:
    """`most` bytes; or, where that is 0, `share` of what is free with what bays have already."""

    share: float = SHARE
    most: int = 0

    def bytes_of(self, free: int) -> int:
        """The allowed number of `free` bytes. What is not there is not allowed either."""
        return min(self.most, free) if self.most else int(self.share * free)

    def written(self) -> str:
        return f"{self.most}" if self.most else f"{round(100 * self.share)}%"


USUAL = Allowance()


def read(text: str) -> Allowance:
    """The allowance in `40%`, `200G`, `1.5 TiB` without the space, or bytes. Raises ValueError for
    all else.
    """
    if percent := _PERCENT.fullmatch(text):
        if not 0 < int(percent[1]) <= 100:
            raise ValueError(text)
        return Allowance(share=int(percent[1]) / 100)
    if size := _SIZE.fullmatch(text):
        most = int(float(size[1]) * (1 << UNITS[size[2]]))
        if most:
            return Allowance(most=most)
    raise ValueError(text)
