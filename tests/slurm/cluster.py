"""A Slurm of three nodes on this host: a controller, three node daemons, and keys of their own.

Debian's packages slurmctld, slurmd, slurm-client and munge are enough; root is needed, because node
daemons start jobs as their users. Nothing outside of one folder is read or written.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

NODES = ("n1", "n2", "n3")
PATIENCE_S = 60.0
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol")

MISSING = next((f"there is no {name}" for name in PROGRAMS if not shutil.which(name)), "") or (
    "node daemons need root" if os.geteuid() else ""
)
"""Why no Slurm can be started here, or ""."""

CONFIG = """
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=5
SlurmdParameters=config_overrides
NodeName=n[1-3] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[3]}] CPUs=2
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=trial Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9
"""


class Cluster:
    """The daemons, and what can be done with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        folder = self.folder
        for name in ("state", "munge", *NODES):
            (folder / name).mkdir()
        ports = free_ports(4)
        text = CONFIG.format(host=socket.gethostname(), ports=ports, folder=folder)
        (folder / "slurm.conf").write_text(text)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        munge = folder / "munge"
        self._start(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket",
            f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed",
        )  # fmt: skip
        self.until(lambda: (munge / "socket").exists(), "munged listens")
        self._start("slurmctld", "-D")
        for name in NODES:
            self._start("slurmd", "-D", "-N", name, key=name)
        self.until(lambda: self.states() == dict.fromkeys(NODES, "idle"), "all nodes are idle")

    def states(self) -> dict[str, str]:
        """Slurm's state of each node."""
        words = self.ask("sinfo", "--noheader", "--Node", "--format=%N %t").split()
        return dict(zip(words[::2], words[1::2], strict=False))

    def submit(self, script: str, *options: str, name: str = "job", **variables: str) -> "Batch":
        """Submit a batch script, with options of sbatch."""
        folder = self.folder / "work"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.sbatch"
        path.write_text(script)
        command = ["sbatch", "--parsable", "--wait", *options, str(path)]
        waiting = subprocess.Popen(
            command, cwd=folder, env={**self._environ, **variables}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert waiting.stdout is not None
        return Batch(self, folder, waiting.stdout.readline().strip(), waiting)

    def lose(self, node: str) -> None:
        """Kill all that runs on a node, as if its machine were gone: daemon, steps, tasks."""
        own = self._daemons.pop(node)
        tasks, steps = set[int](), set[int]()
        for process in self._processes(f"SLURMD_NODENAME={node}"):
            with suppress(psutil.Error):
                parent = process.parent()
                if parent is not None and "slurmstepd" in " ".join(parent.cmdline()):
                    steps.add(parent.pid)
                tasks.add(process.pid)
        # Tasks first: stopped ones whose parent ends are sent SIGHUP, and wake up, by the kernel.
        doomed = [*sorted(tasks - steps, reverse=True), *sorted(steps), own.pid]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # Else its launcher may still tell of it.
            for pid in doomed:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        own.wait(PATIENCE_S)

    def restore(self, node: str) -> None:
        """Have the machine of a lost node start again."""
        self._start("slurmd", "-D", "-N", node, key=node)
        self.until(lambda: self.states().get(node) == "idle", f"{node} is idle again")

    def _processes(self, variable: str = "") -> list[psutil.Process]:
        """Those of this cluster, in whose initial environment `variable` is."""
        wanted = {f"SLURM_CONF={self._environ['SLURM_CONF']}", *filter(None, [variable])}
        found = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                # Not psutil's way: steps write their title over a part of it.
                environ = Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
                if wanted <= set(environ.split("\0")):
                    found.append(process)
        return found

    def ask(self, *command: str) -> str:
        """The output of one of Slurm's programs."""
        ran = subprocess.run(
            command, env=self._environ, capture_output=True, text=True, timeout=30, check=False
        )
        return ran.stdout

    def stop(self) -> None:
        """End what has been started, jobs first."""
        self.ask("scancel", "--user=root")
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        left = self._processes()  # Steps and their tasks outlive the daemons.
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=10)

    def _start(self, *command: str, key: str = "") -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            self._daemons[key or command[0]] = subprocess.Popen(
                command, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def until(self, reached: Callable[[], bool], what: str) -> None:
        """Wait for something that Slurm says, but tells nobody."""
        end = time.monotonic() + PATIENCE_S
        while not reached():
            assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what}\n{self.told()}"
            time.sleep(0.2)  # Slurm has no event that could be waited for.

    def told(self) -> str:
        """The logs of all daemons, for who reads a failure."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in logs)


class Batch:
    """A submitted job."""

    def __init__(
        self, cluster: Cluster, folder: Path, number: str, waiting: subprocess.Popen[str]
    ) -> None:
        self._cluster = cluster
        self.folder = folder
        self.number = number
        self._waiting = waiting  # `sbatch --wait`, which ends as the job does

    @property
    def output(self) -> str:
        """The output of the job so far."""
        return "".join(path.read_text() for path in self.folder.glob(f"*-{self.number}.log"))

    def finish(self, within_s: float) -> int:
        """Wait until Slurm says that the job is over; its exit code."""
        code = self._waiting.wait(within_s)
        assert self._waiting.stdout is not None
        self._waiting.stdout.close()
        return code

    def state(self) -> str:
        """Slurm's word for the job's end, once it has cleaned up."""
        self._cluster.until(lambda: self._now() not in ("COMPLETING", "RUNNING"), "the job is over")
        return self._now()

    def _now(self) -> str:
        words = self._cluster.ask("scontrol", "--oneliner", "show", "job", self.number).split()
        return next((word[9:] for word in words if word.startswith("JobState=")), "")


def free_ports(count: int) -> list[int]:
    """Return so many free ports one after another, as one configuration line has to name them."""
    for first in range(17820, 30000, count):
        held: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                held.append(socket.create_server(("127.0.0.1", port)))
            return list(range(first, first + count))
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
    raise AssertionError("no free ports")


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """A cluster for as long as it is needed."""
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
