"""Each check finds what it is there for, what that breaks and what mends it, and nothing else."""

from typing import Any

import pytest

from recoverrun.doctor.node_examination import examined
from tests.unit.doctor.nodes import GIB, node

SCRIPT = "#SBATCH --no-kill\nsrun --no-kill --kill-on-bad-exit=0 recoverrun train.py\n"
SLURM = {"scheduler": "slurm", "batch_script": SCRIPT}


def test_nothing_is_wrong_with_a_healthy_node() -> None:
    assert {one.level for one in examined(node())} == {"ok"}


def test_a_job_of_one_node_needs_neither_endpoint_nor_key() -> None:
    alone = node(nnodes=1, endpoint="", reach="", route="", own_name="", key="")

    assert {one.level for one in examined(alone)} == {"ok"}


ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("address", {"unknown_hosts": ("gpu-01",)}, "no address is known for gpu-01"),
    ("address", {"route": "*"}, "no route to gpu-01:29400"),
    ("interface", {"environ": {"GLOO_SOCKET_IFNAME": "eth7"}}, "GLOO_SOCKET_IFNAME=eth7"),
    ("interface", {"environ": {"GLOO_SOCKET_IFNAME": "eth"}}, "GLOO_SOCKET_IFNAME=eth"),
    ("interface", {"environ": {"GLOO_SOCKET_IFNAME": "eth0,eth7"}}, "GLOO_SOCKET_IFNAME=eth0,eth7"),
    ("interface", {"nnodes": 1, "environ": {"GLOO_SOCKET_IFNAME": "eth7"}}, "GLOO_SOCKET_IFNAME"),
    ("interface", {"environ": {"NCCL_SOCKET_IFNAME": "=ib"}}, "NCCL_SOCKET_IFNAME==ib"),
    ("endpoint", {"reach": "taken"}, "another program listens"),
    ("endpoint", {"reach": "answers"}, "no rendezvous"),
    ("endpoint", {"reach": "silent"}, "is silent"),
    ("endpoint", {"reach": "unreachable"}, "is unreachable"),
    ("key", {"key_trouble": "the key file belongs to another user"}, "another user"),
    ("script", {"script_trouble": "there is no script 'a.py' in /"}, "no script 'a.py'"),
    ("torch", {"torch": ""}, "not installed"),
    ("torch", {"torch": "2.4.1"}, "torch 2.4.1"),
    ("shm", {"shm_free_bytes": 60 << 20}, "60 MiB free"),
    ("limits", {"open_files": 28}, "28 open files are allowed at most, a launcher needs"),
    ("limits", {"pids_left": 100}, "room for 100"),
    ("run dir", {"run_dir_trouble": "permission denied"}, "permission denied"),
    ("run dir", {"run_dir_free_bytes": 1000}, "1000 bytes free"),
    ("scheduler", {**SLURM, "batch_script": "#SBATCH -N 3\nsrun --no-kill recoverrun a.py"},
     "no --no-kill"),
    ("scheduler", {**SLURM, "batch_script": "#SBATCH --no-kill\nsrun -n3 recoverrun a.py"},
     "srun has no --no-kill"),
    ("scheduler", {**SLURM, "batch_script": "#SBATCH --no-kill\nsrun recoverrun doctor a.py"},
     "srun has no --no-kill"),
    ("scheduler", {**SLURM, "kill_on_bad_exit": True,
                   "batch_script": "#SBATCH -k\nsrun --no-kill recoverrun a.py"},
     "KillOnBadExit=1"),
]  # fmt: skip

WARNINGS: list[tuple[str, dict[str, Any], str]] = [
    ("address", {"route": "127.0.0.1"}, "loopback"),
    ("address", {"local_addr": "10.0.0.9", "local_addr_trouble": "is no address of this machine"},
     "--local-addr 10.0.0.9 is no address of this machine"),
    ("key", {"key": ""}, "no key"),
    ("torch", {"worker_server": False}, "no worker server"),
    ("torch", {"torch": "2.99.0"}, "torch 2.99.0"),
    ("environment", {"environ": {"NCCL_BLOCKING_WAIT": "1"}}, "NCCL_BLOCKING_WAIT=1"),
    ("environment", {"environ": {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}}, "HANDLING=0"),
    ("environment", {"environ": {"OMP_NUM_THREADS": "64"}}, "OMP_NUM_THREADS=64"),
    ("environment", {"environ": {"CUDA_LAUNCH_BLOCKING": "1"}}, "CUDA_LAUNCH_BLOCKING=1"),
    ("environment", {"nproc": 128, "threads": 0}, "128 workers on 64 cores"),
    ("scheduler", {**SLURM, "batch_script": ""}, "cannot be read"),
    ("scheduler", {"scheduler": "systemd", "oom_policy": "stop"}, "OOMPolicy=stop"),
    ("shm", {"shm_free_bytes": 500 << 20}, "500 MiB free"),
    ("limits", {"open_files": 77}, "77 open files are allowed at most, among 3 nodes a launcher"),
    ("limits", {"worker_files": 40}, "workers may have 40 open files"),
    ("limits", {"processes": 1000}, "1000 processes"),
    ("limits", {"core_pattern": "core"}, "writes a core file"),
    ("memory", {"oom_group": True}, "memory.oom.group is 1"),
    ("memory", {"memory_bytes": 4 * GIB}, "4.0 GiB for 8 workers"),
    ("stacks", {"py_spy": True, "ptrace_scope": 3}, "ptrace_scope is 3"),
    ("run dir", {"run_dir_free_bytes": 500 << 20}, "500 MiB free"),
    ("run dir", {"fsync_ms": 350.0}, "350 ms"),
    ("gpu", {"gpus": True, "gpu_words": "8 x NVIDIA H100, driver 580.1"},
     "only if it is asked for"),
    ("gpu", {"gpu_troubles": ("GPU 3: 2 memory errors",)}, "GPU 3"),
    ("gpu", {"xids": ("NVRM: Xid (PCI:0000:4f:00): 79",)}, "Xid (PCI:0000:4f:00): 79"),
    ("memory", {"oom_kills": 3, "oom_killed": ("Killed process 7 (python)",)},
     "3 processes for want of memory since this machine started, at last: Killed process 7"),
    ("environment", {"environ": {"PET_NOWHERE": "1"}}, "PET_NOWHERE is no option"),
    ("environment", {"proxied": ("--notify-url: https_proxy",)}, "through a proxy"),
]  # fmt: skip
CASES = [("error", *one) for one in ERRORS] + [("warning", *one) for one in WARNINGS]


@pytest.mark.parametrize(("level", "check", "changes", "words"), CASES)
def test_a_check_finds_what_it_is_there_for(
    level: str, check: str, changes: dict[str, Any], words: str
) -> None:
    found = [one for one in examined(node(**changes)) if one.level != "ok"]

    assert [(one.level, one.check) for one in found] == [(level, check)]
    assert words in found[0].found
    assert found[0].breaks and found[0].mend


@pytest.mark.parametrize(
    "changes",
    [
        SLURM,
        {**SLURM, "kill_on_bad_exit": True},
        {**SLURM, "environ": {"SLURM_KILL_BAD_EXIT": "1"}},
        {**SLURM, "environ": {"SBATCH_NO_KILL": "1"},
         "batch_script": "srun --no-kill recoverrun a.py"},
        {**SLURM, "kill_on_bad_exit": True,
         "batch_script": f"srun recoverrun doctor a.py\n{SCRIPT}"},
        {"scheduler": "systemd", "oom_policy": "continue"},
        {"environ": {"NCCL_SOCKET_IFNAME": "ib"}},
        {"environ": {"NCCL_SOCKET_IFNAME": "^docker"}},
        {"own_name": "127.0.1.1"},
        {"reach": "refused"},
        {"reach": "rendezvous"},
        {"no_python": True, "torch": ""},
        {"locked_bytes": 1000},
        {"kernel_log": False},
        {"environ": {"PET_NNODES": "3"}},
    ],
)  # fmt: skip
def test_a_check_has_nothing_against_what_is_well(changes: dict[str, Any]) -> None:
    assert [one for one in examined(node(**changes)) if one.level != "ok"] == []


def test_the_way_in_which_gloo_would_fail_is_told_with_the_address() -> None:
    found = [one for one in examined(node(own_name="127.0.1.1")) if one.check == "address"]

    assert "GLOO_SOCKET_IFNAME will be set" in found[0].found
