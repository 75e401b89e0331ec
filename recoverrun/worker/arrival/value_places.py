"""Names of the places at which values lie, the same in each process of the job."""

from collections.abc import Mapping, Sequence
from typing import Any

Place = tuple[str, Any]
"""The path of a holder and a name or an index there; the space of a variable and its name; or the
path of a list or a dict that is meant as a whole, and None.
"""

Spaces = Sequence[tuple[str, Mapping[str, Any]]]
"""Variables, by the name of their function or module."""
