import subprocess
import sys

ROUNDS = """
import resource
from rendezvous.bays import kept_heap

def taken():
    status = open("/proc/self/status").read()
    return int(status.partition("VmRSS:")[2].split()[0])

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        parts = [b"x" * (4 << 20) for _ in range(3)]
        del parts
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20

{keep}
faults()
print(faults(), taken())
kept_heap.give_back()
print(0, taken())
"""


def measured(keep: str) -> tuple[int, int, int]:
    """Page faults for three parts of 4 MiB; KiB of memory, and after some were given back."""
    command = [sys.executable, "-c", ROUNDS.format(keep=keep)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    faults, before, _, after = map(int, out.split())
    return faults, before, after


def test_memory_of_parts_is_used_again_until_it_is_given_back() -> None:
    usual, *_ = measured("")
    faults, before, after = measured("kept_heap.keep_freed()")

    assert usual > 2000, "three parts of 1024 pages"
    assert faults < 100
    assert before - after > 8 << 10
