"""`python -m recoverrun.worker.tools.compare_weights A B`: compare the parameters of two runs.

A and B are witness directories, in which each rank left `rank<r>.pt`. This is a process of its own,
because the launcher never imports torch. Prints one JSON object; leaves with 0 also where the runs
differ, because judging is up to the caller, and with 2 where there is nothing to compare.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from recoverrun.worker.tools.rounding_bound import Course, weight_bound


class WitnessError(Exception):
    """The directories cannot be compared. The text says why, in one sentence."""


def parameters(path: Path) -> dict[str, Tensor]:
    """Return the final parameters that one rank left. Raises WitnessError."""
    try:
        content: object = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise WitnessError(f"{path} cannot be read: {error}") from error
    found = content.get("parameters") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise WitnessError(f"{path} holds no parameters")
    return {str(name): value for name, value in found.items()}


def ranks_of(directory: Path) -> set[int]:
    """Return the ranks that left a witness."""
    stems = [path.stem.removeprefix("rank") for path in directory.glob("rank*.pt")]
    return {int(stem) for stem in stems if stem.isdecimal()}


def differences(a: Path, b: Path, course: Course | None) -> Iterator[dict[str, object]]:
    """Yield one row for each tensor of each rank that both runs have. Raises WitnessError."""
    common = sorted(ranks_of(a) & ranks_of(b))
    if not common:
        raise WitnessError(f"no rank left its parameters both in {a} and in {b}")
    for rank in common:
        left, right = (parameters(directory / f"rank{rank}.pt") for directory in (a, b))
        if left.keys() != right.keys():
            odd = sorted(left.keys() ^ right.keys())
            raise WitnessError(f"rank {rank}: only one of the runs has {', '.join(odd[:3])}")
        for name in sorted(left):
            yield {"rank": rank, "name": name, **_row(left[name], right[name], course)}


def _row(left: Tensor, right: Tensor, course: Course | None) -> dict[str, object]:
    if left.shape != right.shape:
        raise WitnessError(f"shapes {tuple(left.shape)} and {tuple(right.shape)} do not compare")
    if not left.numel():
        return {"max_abs_diff": 0.0, "bound": None if course is None else 0.0, "elements": 0}
    one, two = left.double(), right.double()
    largest = max(float(one.abs().max()), float(two.abs().max()))
    return {
        # NaN never compares: a run that ended in NaN is as far away as can be.
        "max_abs_diff": float((one - two).abs().nan_to_num(torch.inf).max()),
        "bound": None if course is None else weight_bound(course, largest),
        "elements": left.numel(),
    }


def compare(a: Path, b: Path, course: Course | None) -> dict[str, object]:
    """Return the verdict on two witness directories as plain values. Raises WitnessError."""
    rows = list(differences(a, b, course))

    def excess(row: dict[str, object]) -> float:
        difference, bound = row["max_abs_diff"], row["bound"]
        assert isinstance(difference, float), f"a difference is a float: {difference!r}"
        if not isinstance(bound, float):
            return difference
        # Nothing may differ where no step was summed in another order.
        return difference / bound if bound else math.inf if difference else 0.0

    rows.sort(key=excess, reverse=True)
    worst: dict[str, dict[str, object]] = {}
    for row in rows:
        worst.setdefault(str(row["name"]), row)
    return {
        "ranks": sorted(ranks_of(a) & ranks_of(b)),
        "elements": sum(e for row in rows if isinstance(e := row["elements"], int)),
        "max_abs_diff": max(d for row in rows if isinstance(d := row["max_abs_diff"], float)),
        "bound": rows[0]["bound"],
        "within": None if course is None else excess(rows[0]) <= 1.0,
        "worst": list(worst.values()),
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m recoverrun.worker.tools.compare_weights")
    parser.add_argument("a", type=Path)
    parser.add_argument("b", type=Path)
    parser.add_argument("--terms", type=int, default=0, help="microbatches per step")
    parser.add_argument("--rates", default="", help="learning rates from the first loss on")
    parser.add_argument("--betas", default="0.9,0.95", help="of Adam")
    args = parser.parse_args(argv)

    rates = tuple(float(rate) for rate in args.rates.split(",") if rate)
    beta1, beta2 = (float(beta) for beta in args.betas.split(","))
    course = Course(rates=rates, terms=args.terms, betas=(beta1, beta2)) if args.terms else None
    try:
        print(json.dumps(compare(args.a, args.b, course)))
    except WitnessError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
