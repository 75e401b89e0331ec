"""Checks of what a machine gives a run: memory, limits, torch, the run directory."""

import math
from collections.abc import Iterator

from recoverrun.doctor.findings import Finding, error, ok, warning
from recoverrun.doctor.node_facts import UNLIMITED, NodeFacts
from recoverrun.launcher.network.job_fingerprint import TORCH_TRIED, untried
from recoverrun.launcher.node.descriptors import launcher_needs, worker_needs
from recoverrun.text import plural

MIB, GIB = 1 << 20, 1 << 30
SHM_NEED_BYTES, SHM_WISH_BYTES = 8 * MIB, GIB
"""Of shared memory: what a worker's context takes, and what data loaders like to have."""

PIDS_PER_WORKER = 64  # threads count
PROCESSES_WISH = 4096
MEMORY_WISH_BYTES = GIB  # per worker
FREE_NEED_BYTES, FREE_WISH_BYTES = MIB, GIB
FSYNC_MS = 100.0


def shared_memory(facts: NodeFacts) -> Iterator[Finding]:
    need = SHM_NEED_BYTES * facts.nproc
    found = f"/dev/shm has {size(facts.shm_free_bytes)} free of {size(facts.shm_bytes)}"
    mend = "docker run --shm-size=8g; Kubernetes: an emptyDir with medium Memory at /dev/shm"
    if facts.shm_free_bytes < need:
        breaks = f"what a lost rank leaves for the others lies there, {size(need)} at most"
        yield error("shm", found, breaks, mend)
    elif facts.shm_free_bytes < SHM_WISH_BYTES:
        yield warning("shm", found, "worker processes of data loaders may fail there", mend)
    else:
        yield ok("shm", found)


def _launcher_files(facts: NodeFacts) -> Iterator[Finding]:
    """An error where a run would refuse to start, a warning where it would warn."""
    # The hard limit, which a user cannot raise: launchers raise the soft one to it themselves.
    most = math.inf if facts.open_files == UNLIMITED else facts.open_files
    alone, own = launcher_needs(facts.nproc, 1), launcher_needs(facts.nproc, facts.nnodes)
    mend = "docker run --ulimit nofile=65536; systemd: LimitNOFILE=65536; root: ulimit -Hn 65536"
    if most < alone:
        found = f"{most} open files are allowed at most, a launcher needs {own}"
        yield error("limits", found, "launchers cannot work", mend)
    elif most < own:
        found = f"{most} open files are allowed at most, among {facts.nnodes} nodes a launcher"
        yield warning("limits", f"{found} needs {own}", "nodes may not reach each other", mend)


def limits(facts: NodeFacts) -> Iterator[Finding]:
    yield from _launcher_files(facts)
    ranks = facts.nproc * facts.nnodes
    need = worker_needs(ranks)
    if facts.worker_files != UNLIMITED and facts.worker_files < need:
        found = f"workers may have {facts.worker_files} open files, among {ranks} each needs {need}"
        yield warning("limits", found, "collectives may fail", f"ulimit -n {max(need, 65536)}")
    if facts.pids_left != UNLIMITED and facts.pids_left < PIDS_PER_WORKER * facts.nproc:
        found = f"the cgroup has room for {facts.pids_left} more threads and processes"
        breaks = "workers fail as they start threads"
        yield error("limits", found, breaks, "raise pids.max (Kubernetes: podPidsLimit)")
    if facts.processes != UNLIMITED and facts.processes < PROCESSES_WISH:
        found = f"{facts.processes} processes are allowed for this user"
        breaks = "data loaders and a lost rank's successor may not start"
        yield warning("limits", found, breaks, "ulimit -u 65536")
    if facts.gpus and facts.locked_bytes != UNLIMITED:
        found = f"{size(facts.locked_bytes)} may be locked in memory"
        yield warning("limits", found, "RDMA fails to register memory", "ulimit -l unlimited")
    if facts.core_bytes and not facts.core_pattern.startswith("|"):
        found = f"a crash writes a core file ({facts.core_pattern or 'core'})"
        breaks = "a crashed rank counts as lost only when its memory is on the disk"
        yield warning("limits", found, breaks, "ulimit -c 0")


def memory(facts: NodeFacts) -> Iterator[Finding]:
    if facts.oom_group:
        yield warning(
            "memory",
            "memory.oom.group is 1 for this cgroup",
            "one process out of memory takes the launcher and all ranks of this node along",
            "kubelet: singleProcessOOMKill: true; systemd: OOMPolicy=continue",
        )
    wish = MEMORY_WISH_BYTES * facts.nproc
    if facts.memory_bytes != UNLIMITED and facts.memory_bytes < wish:
        found = f"the cgroup has {size(facts.memory_bytes)} for {facts.nproc} workers"
        breaks = "the kernel may kill them"
        yield warning("memory", found, breaks, f"give it {size(wish)} or more")

    if facts.oom_kills or facts.oom_killed:
        found = f"the kernel has ended {plural(facts.oom_kills, 'process')} for want of memory"
        last = f", at last: {facts.oom_killed[-1]}" if facts.oom_killed else ""
        yield warning(
            "memory",
            f"{found} since this machine started{last}",
            "a rank may end in the same way",
            "journalctl -k | grep -i oom; fewer workers, or more memory for each",
        )


def software(facts: NodeFacts) -> Iterator[Finding]:
    if facts.no_python:
        return
    found = f"torch {facts.torch}, Python {facts.python}, recoverrun {facts.version}"
    if not facts.torch:
        breaks = "workers cannot start"
        yield error("torch", "torch is not installed for this Python", breaks, "pip install torch")
        return
    numbers = tuple(int(part) for part in facts.torch.split(".")[:2] if part.isdigit())
    oldest = "{}.{}".format(*TORCH_TRIED[0])
    if numbers < TORCH_TRIED[0]:
        breaks = f"recovery needs torch {oldest}"
        yield error("torch", found, breaks, f"pip install 'torch>={oldest}'")
    elif untried(facts.torch):
        mend = "try a loss first: recoverrun inject"
        yield warning("torch", found, untried(facts.torch), mend)
    elif not facts.worker_server:
        found = f"{found}; this torch has no worker server"
        breaks = "the stacks of a rank that hangs are read by slower ways, or not"
        yield warning("torch", found, breaks, "pip install py-spy")
    else:
        yield ok("torch", found)


def stacks(facts: NodeFacts) -> Iterator[Finding]:
    if facts.py_spy and facts.ptrace_scope >= 2:
        found = f"kernel.yama.ptrace_scope is {facts.ptrace_scope}"
        breaks = "py-spy cannot read the stack of a rank that is stopped or keeps Python's lock"
        mend = "docker run --cap-add SYS_PTRACE; sysctl kernel.yama.ptrace_scope=1"
        yield warning("stacks", found, breaks, mend)


def run_directory(facts: NodeFacts) -> Iterator[Finding]:
    where = facts.run_dir
    if facts.run_dir_trouble:
        found = f"{where}: {facts.run_dir_trouble}"
        yield error("run dir", found, "there is no place for the journal", "--run-dir DIR")
        return
    free = f"{where} has {size(facts.run_dir_free_bytes)} free"
    if facts.run_dir_free_bytes < FREE_NEED_BYTES:
        yield error("run dir", free, "the journal has no room", "--run-dir DIR")
    elif facts.run_dir_free_bytes < FREE_WISH_BYTES:
        yield warning(
            "run dir", free, "logs may fill it", "--run-dir DIR, or recoverrun runs --prune"
        )
    elif facts.fsync_ms > FSYNC_MS:
        found = f"{where} takes {facts.fsync_ms:.0f} ms for one fsync"
        breaks = "the end of the journal may be missing after a crash of the machine"
        yield warning("run dir", found, breaks, "--run-dir on a faster disk")
    else:
        yield ok("run dir", f"{free}, fsync in {facts.fsync_ms:.1f} ms")


def kernel(facts: NodeFacts) -> Iterator[Finding]:
    if not facts.kernel_log:
        yield ok("kernel log", "it cannot be read here (kernel.dmesg_restrict): OOM kills are only"
                 " counted, errors of GPUs not seen")  # fmt: skip


def gpu(facts: NodeFacts) -> Iterator[Finding]:
    if facts.gpus:
        yield ok("gpu", facts.gpu_words)
    for trouble in facts.gpu_troubles:
        yield warning("gpu", trouble, "it is slow, or fails", "nvidia-smi -q; have it looked at")
    if facts.xids:
        found = f"the driver has told of errors since this machine started: {facts.xids[-1]}"
        breaks = "a GPU that has failed may fail again"
        yield warning("gpu", found, breaks, "look the Xid up in NVIDIA's list; nvidia-smi -q")
    if facts.gpus and facts.protect:
        found = "there are NVIDIA GPUs; a model on one is protected only if it is asked for"
        breaks = "a job on GPUs runs as under torchrun, without protection"
        yield warning("gpu", found, breaks, "RECOVERRUN_CUDA=nccl; first read docs/gpu.md")


def size(count: int) -> str:
    """The number of bytes in words."""
    if count == UNLIMITED:
        return "no limit"
    for unit, name in ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return (
                f"{count / unit:.0f} {name}" if count >= 10 * unit else f"{count / unit:.1f} {name}"
            )
    return f"{count} bytes"
