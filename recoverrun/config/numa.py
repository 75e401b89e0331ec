"""The CPUs next to a worker's GPU: `--numa-binding`, with the meaning that torch gives it.

Read from /sys and the driver's /proc, without loading CUDA. A worker's GPU is the visible one with
the number of its local rank; they are numbered by PCI address, as CUDA does where all are alike.
"""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from recoverrun.config.kernel_files import content_of

MODES = ("node", "socket", "exclusive", "core-complex")

ROOT = Path("/")


def bindings(
    mode: str, nproc: int, environ: Mapping[str, str], allowed: Collection[int], root: Path = ROOT
) -> tuple[tuple[int, ...], ...]:
    """The CPUs of each local rank; () where a rank has no GPU, or none of its CPUs is allowed."""
    nodes = [_node_of(address, root) for address in _visible(environ, root)]
    if len(nodes) < nproc:
        return ()
    found = tuple(tuple(sorted(_cpus(mode, gpu, nodes, allowed, root))) for gpu in range(nproc))
    return found if all(found) else ()


def _visible(environ: Mapping[str, str], root: Path) -> list[str]:
    """PCI addresses of the NVIDIA GPUs that CUDA would show, in its order."""
    found = sorted(path.name.lower() for path in root.glob("proc/driver/nvidia/gpus/*"))
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return found
    chosen: list[str] = []
    for word in environ["CUDA_VISIBLE_DEVICES"].split(","):
        name = word.strip()
        if name.isdigit() and int(name) < len(found):
            chosen.append(found[int(name)])
        elif name.startswith("GPU-") and (address := _by_uuid(name, root)):
            chosen.append(address)
        else:
            break  # As CUDA does: what follows a name that it does not know is not seen.
    return chosen


def _by_uuid(start: str, root: Path) -> str:
    for path in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        match = re.search(r"^GPU UUID:\s*(\S+)", content_of(path), re.MULTILINE)
        if match is not None and match[1].startswith(start):
            return path.parent.name.lower()
    return ""


def _node_of(address: str, root: Path) -> int:
    """The NUMA node of a device. With one node only, the kernel says -1."""
    text = content_of(root / f"sys/bus/pci/devices/{address}/numa_node")
    return int(text) if text.isdigit() else 0


def _cpus(mode: str, gpu: int, nodes: list[int], allowed: Collection[int], root: Path) -> set[int]:
    here = _cpus_of(nodes[gpu], allowed, root)
    place = [other for other, node in enumerate(nodes) if node == nodes[gpu]].index(gpu)
    sharers = nodes.count(nodes[gpu])
    if not here or mode == "node":
        return here
    if mode == "socket":
        return _socket(min(here), allowed, root)
    if mode == "exclusive":
        cores = [cpus for _, cpus in sorted(_grouped(here, lambda cpu: _core(cpu, root)).items())]
        each, more = divmod(len(cores), sharers)
        first = place * each + min(place, more)
        return set().union(*cores[first : first + each + (place < more)])
    complexes = _grouped(here, lambda cpu: _cache(cpu, root))
    ordered = sorted(complexes.items(), key=lambda item: (-len(item[1]), item[0]))
    return ordered[place % len(ordered)][1]


def _cpus_of(node: int, allowed: Collection[int], root: Path) -> set[int]:
    return _numbers(content_of(root / f"sys/devices/system/node/node{node}/cpulist")) & set(allowed)


def _socket(cpu: int, allowed: Collection[int], root: Path) -> set[int]:
    """All CPUs of the nodes whose first CPU is on the same package."""

    def package(of: int) -> str:
        return content_of(root / f"sys/devices/system/cpu/cpu{of}/topology/physical_package_id")

    possible = _numbers(content_of(root / "sys/devices/system/node/possible"))
    every = [cpus for node in possible if (cpus := _cpus_of(node, allowed, root))]
    return set().union(*(cpus for cpus in every if package(min(cpus)) == package(cpu)))


def _core(cpu: int, root: Path) -> int:
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return min(_numbers(content_of(path)) or {cpu})


def _cache(cpu: int, root: Path) -> int:
    """The first of the CPUs with which this one shares its last cache."""
    level, sharers = -1, {cpu}
    for cache in sorted(root.glob(f"sys/devices/system/cpu/cpu{cpu}/cache/index[0-9]*")):
        text = content_of(cache / "level")
        data = content_of(cache / "type") in ("Unified", "Data")
        if data and text.isdigit() and int(text) > level:
            level, sharers = int(text), _numbers(content_of(cache / "shared_cpu_list")) or {cpu}
    return min(sharers)


def _grouped(cpus: Collection[int], key: Callable[[int], int]) -> dict[int, set[int]]:
    groups: dict[int, set[int]] = {}
    for cpu in cpus:
        groups.setdefault(key(cpu), set()).add(cpu)
    return groups


def _numbers(text: str) -> set[int]:
    """`0-2,4` is {0, 1, 2, 4}."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found
