"""NVIDIA's GPUs of this node, from files of the driver and from its own program."""

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from recoverrun.doctor.program_output import output_of

DRIVER = Path("/proc/driver/nvidia")

ANSWER_S = 5.0
"""Without its persistence daemon the driver wakes up each GPU first."""

_VERSION = re.compile(r"\s(\d+\.\d+(?:\.\d+)*)\s")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)
_QUERY = "index,ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.hw_slowdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """`words` is "" without the driver; troubles are clauses like "GPU 3: 2 memory errors"."""

    there: bool = False
    words: str = ""
    troubles: tuple[str, ...] = ()


def gpus(driver: Path = DRIVER) -> Gpus:
    """Models and driver; and which of them say that they are not well."""
    version = _VERSION.search(_text(driver / "version"))
    if version is None:
        return Gpus()
    models = Counter(
        model[1]
        for place in sorted((driver / "gpus").glob("*/information"))
        if (model := _MODEL.search(_text(place)))
    )
    shown = [f"{count} x {model}" for model, count in sorted(models.items())]
    return Gpus(
        there=True,
        words=f"{', '.join(shown) or 'no GPU'}, driver {version[1]}",
        troubles=tuple(troubles(_asked())),
    )


def troubles(table: str) -> list[str]:
    """The faults in the lines of `nvidia-smi`: index, uncorrected memory errors, slowed down."""
    found = []
    for line in table.splitlines():
        index, errors, slow, *_ = [*(word.strip() for word in line.split(",")), "", "", ""]
        if errors.isdigit() and int(errors):
            found.append(f"GPU {index}: {errors} memory errors that ECC could not correct")
        if slow == "Active":
            found.append(f"GPU {index}: its clock is slowed down by heat or lack of power")
    return found


def _asked() -> str:
    query, shape = f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"
    return output_of("nvidia-smi", query, shape, within_s=ANSWER_S)


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""
