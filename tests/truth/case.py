"""One script of the table, and what must come of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SCRIPTS = Path(__file__).parent / "scripts"
Contract = Literal["exact", "steered", "told", "either"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`script` takes the folder that it leaves its weights in, then `arguments`.

    Two replicas give the bits of torchrun; a sum of three may be ordered otherwise, within `apart`.
    `contract` holds for every one of `kills`: the weights of the run without a loss and a promise
    that stands, the same weights where a figure over the survivors is told, a promise that is taken
    back, or the first or the third of these. A replica has `shards` ranks.
    """

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    ranks: int = 2
    shards: int = 1
    kills: tuple[str, ...] = ()
    contract: Contract = "exact"
    told: str = ""  # part of what must be said after a kill
    apart: float = 1e-12
    needs: str = ""  # a package beside torch
    sample: bool = True  # of the table: others have the same script

    @property
    def bitwise(self) -> bool:
        return self.ranks == 2


def case(name: str, script: str, *kills: str, **more: object) -> Case:
    """A row whose name ends with the argument of its script, if it has one."""
    row, _, way = name.partition("-")
    arguments = (way,) if way else ()
    known = {"name": name, "script": script, "arguments": arguments, "kills": kills}
    return Case(**{**known, **more})  # type: ignore[arg-type]
