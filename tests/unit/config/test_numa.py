"""Bindings of a machine with two sockets of two nodes, two GPUs on node 0 and one on node 2."""

from pathlib import Path

import pytest

from recoverrun.config.numa import bindings

GPUS = {"0000:0a:00.0": 0, "0000:1b:00.0": 0, "0000:c0:00.0": 2}
CPUS = range(16)  # four a node; 0 and 1, 2 and 3, ... are threads of one core


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {"sys/devices/system/node/possible": "0-3"}
    for number, (address, node) in enumerate(GPUS.items()):
        files[f"sys/bus/pci/devices/{address}/numa_node"] = str(node)
        information = f"Model: \t\t H100\nGPU UUID: \t GPU-{number}abc\n"
        files[f"proc/driver/nvidia/gpus/{address}/information"] = information
    for node in range(4):
        files[f"sys/devices/system/node/node{node}/cpulist"] = f"{4 * node}-{4 * node + 3}"
    for cpu in CPUS:
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        files[f"{folder}/topology/physical_package_id"] = str(cpu // 8)
        files[f"{folder}/topology/thread_siblings_list"] = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
        for index, (level, kind) in enumerate([(1, "Data"), (1, "Instruction"), (3, "Unified")]):
            cache = f"{folder}/cache/index{index}"
            files[f"{cache}/level"], files[f"{cache}/type"] = str(level), kind
            files[f"{cache}/shared_cpu_list"] = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("node", ((0, 1, 2, 3), (0, 1, 2, 3), (8, 9, 10, 11))),
        ("socket", (tuple(range(8)), tuple(range(8)), tuple(range(8, 16)))),
        ("exclusive", ((0, 1), (2, 3), (8, 9, 10, 11))),
        ("core-complex", ((0, 1), (2, 3), (8, 9))),
    ],
)
def test_every_mode_binds_next_to_the_gpu(
    root: Path, mode: str, expected: tuple[tuple[int, ...], ...]
) -> None:
    assert bindings(mode, 3, {}, CPUS, root) == expected


@pytest.mark.parametrize("devices", ["2,0", "GPU-2,GPU-0abc", "2, 0, 77, 1"])
def test_gpus_are_numbered_as_they_are_visible(root: Path, devices: str) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": devices}

    assert bindings("node", 2, environ, CPUS, root) == ((8, 9, 10, 11), (0, 1, 2, 3))
    assert bindings("node", 3, environ, CPUS, root) == ()


def test_only_cpus_that_are_allowed_are_bound_to(root: Path) -> None:
    assert bindings("node", 1, {}, {2, 3, 9}, root) == ((2, 3),)
    assert bindings("node", 3, {}, {2, 3}, root) == ()


def test_a_machine_without_gpus_binds_nothing(tmp_path: Path) -> None:
    assert bindings("node", 1, {}, CPUS, tmp_path) == ()
