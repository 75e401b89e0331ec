"""`make hunt`: generated scripts, each under plain torch, without a loss and with one."""

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.hunt.plain import Plain
from tests.hunt.plan import Plan, planned
from tests.hunt.trials import RETURNS_WITHIN_S, WITHIN_S, Case, tried
from tests.warm.launchers import LAUNCHERS

RETURNS = "the lost rank's replica is to come back, and survivors wait for it"


def hunt(
    seeds: list[int],
    folder: Path,
    at_once: int = 1,
    *,
    whole_every: int = 1,
    returns: bool = False,
    within_s: float = WITHIN_S,
) -> Iterator[Case]:
    """Try the scripts of `seeds`; every so many are also run without a loss. With `returns` the
    lost rank's replica is to come back.
    """
    free: SimpleQueue[Plain] = SimpleQueue()

    def case(number: int, seed: int) -> Case:
        plain = free.get()
        try:
            whole = number % whole_every == 0
            where = folder / str(seed)
            plan = planned(seed, returns=returns)
            return tried(plan, where, plain, whole=whole, returns=returns, within_s=within_s)
        finally:
            free.put(plain)

    helpers = [Plain() for _ in range(at_once)]
    for one in helpers:
        free.put(one)
    try:
        with ThreadPoolExecutor(at_once) as pool:
            yield from pool.map(case, range(len(seeds)), seeds)
    finally:
        for one in helpers:
            one.__exit__(None, None, None)


def line(case: Case) -> str:
    """The outcome and the plan, in a line."""
    words = [f"{one.kind}{f' ({one.reason})' * bool(one.reason)}" for one in case.verdicts]
    return f"seed {case.plan.seed}: {'; '.join(words)} | {case.plan}"


def summary(cases: list[Case]) -> Iterator[str]:
    """The number of each kind, and the reasons that runs gave."""
    lossy = [case.lossy for case in cases if case.lossy is not None]
    whole = sum(one.kind == "whole" for one in lossy)
    told = Counter(_short(one.reason) for one in lossy if one.kind == "told")
    away = Counter(_short(one.reason) for one in lossy if one.kind == "whole" and one.reason)
    findings = [(case.plan, one) for case in cases for one in case.findings]
    yield f"{len(cases)} scripts: {whole} whole, {told.total()} told, {len(findings)} findings"
    for reason, count in told.most_common():
        yield f"  told {count}: {reason}"
    for reason, count in away.most_common():
        yield f"  whole, but {count}: {reason}"
    for plan, one in findings:
        yield f"  FINDING seed {plan.seed}: {_short(one.reason)}"


def _short(reason: str) -> str:
    """Without what differs from script to script: lines and the folder."""
    return re.sub(r":\d+(?::\d+)?\b", "", re.sub(r"/\S*/", "", reason))[:260]


def once(plan: Plan, within_s: float, *, returns: bool) -> Case:
    """Replay one script, and leave everything where it can be looked at."""
    folder = Path(tempfile.mkdtemp(prefix=f"hunt{plan.seed}-"))
    print(f"in {folder}", flush=True)
    with Plain() as plain:
        return tried(plan, folder, plain, returns=returns, within_s=within_s)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hunt")
    parser.add_argument("--scripts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--once", type=int, metavar="SEED", help="replay one and keep its files")
    parser.add_argument("--seeds", type=_numbers, help="these, with commas between them")
    parser.add_argument(
        "--whole-every", type=int, default=1, help="one script of so many runs without a loss, too"
    )
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--return", dest="returns", action="store_true", help=RETURNS)
    parser.add_argument("--within", type=float, help="seconds: else it hangs")
    parser.add_argument("--cold", action="store_true", help="all processes are new ones")
    args = parser.parse_args()
    args.within = args.within or (RETURNS_WITHIN_S if args.returns else WITHIN_S)
    with LAUNCHERS.forked(not args.cold):
        return _hunted(args)


def _hunted(args: argparse.Namespace) -> int:
    if args.once is not None:
        plan = planned(args.once, returns=args.returns)
        case = once(plan, args.within, returns=args.returns)
        print(line(case))
        for one in case.findings:
            print(*one.details, sep="\n")
        return min(len(case.findings), 1)
    cases = []
    with tempfile.TemporaryDirectory(prefix="hunt") as directory:
        seeds = args.seeds or list(range(args.seed, args.seed + args.scripts))
        found = hunt(
            seeds,
            Path(directory),
            args.at_once,
            whole_every=args.whole_every,
            returns=args.returns,
            within_s=args.within,
        )
        for case in found:
            cases.append(case)
            print(line(case), flush=True)
    print(*summary(cases), sep="\n")
    return min(sum(bool(case.findings) for case in cases), 1)


if __name__ == "__main__":
    sys.exit(main())
