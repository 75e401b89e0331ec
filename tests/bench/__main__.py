"""`make bench`: all benchmarks, one after another. Each is a module of its own, with --help."""

import argparse
import subprocess
import sys

QUICK = {
    "launcher": ["--rounds=3", "--weighings=1"],
    "launch": ["--rounds=2"],
    "recovery": ["--runs=2", "--restarts=1", "--defaults=0"],
    "steady": ["--launches=1", "--pairs=4"],
    "exact": ["--pairs=4"],
    "overlap": ["--runs=1"],
    "transfer": ["--rounds=3"],
    "returns": ["--kills=2", "--pairs=1", "--small"],
    "snapshots": ["--mb=40", "--rounds=1"],
    "snapshot_steps": ["--layers=4", "--steps=30", "--rounds=1"],
    "machines": [],
    "scale": ["--many", "1000", "--events=3", "--idle=4"],
    "takeover": ["--many", "1000"],
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions: does it work?")
    args = parser.parse_args()
    for name, options in QUICK.items():
        command = [sys.executable, "-m", f"tests.bench.{name}", *(options if args.quick else [])]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
