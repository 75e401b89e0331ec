"""A script finds in a warm spare what it finds in a process that was started cold."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from recoverrun.launcher.node.environment import OUR_WORKER
from recoverrun.launcher.node.process import Child
from recoverrun.launcher.node.spares import Spares, stream
from rendezvous.protocol.records import Record
from rendezvous.protocol.spare_order import SpareOrder
from rendezvous.protocol.worker_env import WorkerEnv
from rendezvous.transport.station import Station

PATIENCE_S = 120.0

SCRIPT = """
import sys
before = dict(path=list(sys.path), argv=sys.argv, orig=sys.orig_argv, main=sorted(globals()))
import json, os
import torch, torch._dynamo, torch.distributed.tensor, torch.distributed.fsdp
import beside

def ours(value):
    kind = sys.modules.get(type(value).__module__)
    is_function = type(value) is type(ours)
    place = value.__code__.co_filename if is_function else getattr(kind, "__file__", "")
    return any(part in (place or "") for part in ("/recoverrun/worker/", "/ft_collectives/"))

def patched():
    for module_name, module in sorted(sys.modules.items()):
        if module_name.split(".")[0] != "torch" or type(module) is not type(sys):
            continue
        for name, value in sorted(vars(module).items(), key=lambda item: item[0]):
            if ours(value):
                yield f"{module_name}:{name}"
            if type(value) is dict and any(map(ours, value)):
                yield f"{module_name}:{name} as a table"
            if type in type(value).__mro__ and value.__module__ == module_name:
                for method, one in sorted(vars(value).items()):
                    if ours(getattr(one, "__func__", one)):
                        yield f"{module_name}:{name}.{method}"

tasks = [int(task) for task in os.listdir("/proc/self/task")]
found = dict(
    before,
    patched=list(patched()),
    environ=dict(os.environ),
    threads=torch.get_num_threads(),
    policies=sorted({os.sched_getscheduler(task) for task in tasks}),
    file=__file__, name=__name__, is_main=sys.modules["__main__"].__dict__ is globals(),
    files=[os.readlink(f"/proc/self/fd/{fd}") for fd in (1, 2)],
    write=[stream.write_through for stream in (sys.stdout, sys.stderr)],
    lines=[stream.line_buffering for stream in (sys.stdout, sys.stderr)],
    cwd=os.getcwd(), flags=str(sys.flags), beside=beside.__file__,
)
print("to stdout", flush=True)
print("to stderr", file=sys.stderr, flush=True)
json.dump(found, open(sys.argv[1], "w"))
"""


class Place:
    """A folder with the script, a worker's environment, and spares."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "script.py").write_text(SCRIPT)
        (folder / "beside.py").touch()
        self.station = Station()
        self.records: list[Record] = []
        self.spares = Spares(1, self.station, self.records.append)
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.base = {**os.environ, **paths, "OMP_NUM_THREADS": "3"}

    def environ(self, rank: int) -> dict[str, str]:
        env = WorkerEnv(
            endpoint=f"ipc://{self.folder}/s", incarnation=rank, run_dir=str(self.folder),
            context=f"{self.folder}/c", protect=True, inject="", finals="", exact=False,
            check_finite=False, digest_every=0, returns=False, keeper="", snapshot_every="0",
            restore="", rank=rank, local_rank=rank,
            world_size=2, local_world_size=2, error_file=f"{self.folder}/error.{rank}",
        )  # fmt: skip
        return {**self.base, **env.to_environ()}

    def order(self, name: str) -> SpareOrder:
        return SpareOrder(
            environ=self.environ(1),
            arguments=(str(self.folder / "script.py"), str(self.folder / name), "--an", "argument"),
            stdout=stream(self.folder / "out"),
            stderr=stream(self.folder / "err"),
        )

    def cold(self, order: SpareOrder) -> None:
        with open(order.stdout, "ab") as out, open(order.stderr, "ab") as err:
            subprocess.run(
                [sys.executable, *OUR_WORKER, *order.arguments],
                env=order.environ, stdout=out, stderr=err, check=True,
            )  # fmt: skip

    def warm(self, order: SpareOrder) -> Child:
        self.spares.keep([sys.executable, *OUR_WORKER], self.environ(0))
        [spare] = self.spares._waiting
        assert wait([spare.line], PATIENCE_S), "it says that it is ready"
        child = self.spares.take(order)
        assert child is not None
        return child


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.spares.end()
    place.station.close()


def test_a_script_finds_what_it_finds_in_a_process_that_was_started_cold(place: Place) -> None:
    cold, warm = place.order("cold"), place.order("warm")
    place.cold(cold)
    child = place.warm(warm)
    os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT)

    assert child.reap() == 0, (place.folder / "err").read_text()
    first, second = (json.loads((place.folder / name).read_text()) for name in ("cold", "warm"))
    assert first["patched"], "the hooks are in place"
    for key in first:
        assert second[key] == first[key] or key in ("argv", "orig"), key
    assert second["argv"] == [arg.replace("/cold", "/warm") for arg in first["argv"]]
    assert second["orig"] == [arg.replace("/cold", "/warm") for arg in first["orig"]]
    assert (place.folder / "out").read_text() == "to stdout\n" * 2
    assert (place.folder / "err").read_text() == "to stderr\n" * 2
