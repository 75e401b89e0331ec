"""The keeper is listened to also while this node has no workers: nobody waits in a busy loop."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.config.snapshot_options import SnapshotOptions
from recoverrun.launcher.node.bystanders import Bystanders
from recoverrun.launcher.node.snapshot_dir import SnapshotDir
from rendezvous.bays import memory, part_files
from rendezvous.bays.client import KeeperClient
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.records import Record
from rendezvous.protocol.snapshot_messages import Persist, Persisted
from rendezvous.snapshots import bay_header
from rendezvous.snapshots.bay_header import BayHeader
from rendezvous.snapshots.identity import SnapshotId
from rendezvous.transport.station import Station

pytestmark = pytest.mark.rest

PATIENCE_S = 60.0

START = Start(
    generation=1, node_rank=0, nnodes=1, first_rank=0, nproc=1, world_size=1, master_addr="",
    nodes=("a",),
)  # fmt: skip


def _config(*line: str) -> RunConfig:
    options = read([*line, "x.py"], {})
    assert options is not None
    return parse_options(options, {})


def test_a_keeper_that_speaks_or_ends_without_workers_is_heard(tmp_path: Path) -> None:
    bystanders, station = Bystanders(str(tmp_path / "s")), Station()
    records: list[Record] = []
    keeper = bystanders.begin(_config("--snapshot-every", "3"), START, station, records.append)
    assert keeper is not None
    client = KeeperClient(keeper.path, 0, 0, 1)
    give_up_at = time.monotonic() + PATIENCE_S
    while not keeper.holding.serial:
        assert time.monotonic() < give_up_at
        bystanders.read(station.wait(0.1))
    client.reserve(1 << 16).seal(0, 3, b"", b"")
    while not bystanders.held:
        assert time.monotonic() < give_up_at
        bystanders.read(station.wait(0.1))
    (pid,) = keeper.pids
    os.kill(pid, signal.SIGKILL)
    while "keeper.exit" not in [record.event for record in records]:
        assert time.monotonic() < give_up_at
        bystanders.read(station.wait(0.1))

    assert not keeper.pids & {pid}
    client.close()
    bystanders.end()
    station.close()


def test_where_nobody_asked_there_is_a_keeper_once_a_worker_calls(tmp_path: Path) -> None:
    bystanders, station = Bystanders(str(tmp_path / "s")), Station()
    records: list[Record] = []
    keeper = bystanders.begin(_config(), START, station, records.append)
    assert keeper is not None
    bystanders.read(station.wait(0.0))
    assert (keeper.pids, records, keeper.deadline()) == (frozenset(), [], None)
    client = KeeperClient(keeper.path, 0, 0, 1)
    with ThreadPoolExecutor(1) as pool:
        bay = pool.submit(client.reserve, 1 << 16, within_s=PATIENCE_S)
        while not bay.done():
            bystanders.read(station.wait(0.1))
        bay.result().seal(0, 3, b"", b"")
    give_up_at = time.monotonic() + PATIENCE_S
    while not bystanders.held:
        assert time.monotonic() < give_up_at
        bystanders.read(station.wait(0.1))

    assert len(keeper.pids) == 1 and [record.event for record in records] == ["keeper.spawn"]
    client.close()
    bystanders.end()
    station.close()


def test_a_keeper_that_nobody_called_leaves_nothing(tmp_path: Path) -> None:
    bystanders, station = Bystanders(str(tmp_path / "s")), Station()
    before = set(os.listdir("/proc/self/fd"))
    keeper = bystanders.begin(_config(), START, station, [].append)
    bystanders.end()

    assert keeper is not None and not keeper.pids
    assert set(os.listdir("/proc/self/fd")) <= before
    station.close()


def test_with_0_there_is_none(tmp_path: Path) -> None:
    bystanders, station = Bystanders(str(tmp_path / "s")), Station()

    assert bystanders.begin(_config("--snapshot-every=0"), START, station, [].append) is None
    assert (bystanders.held, bystanders.read(set())) == ((), [])
    bystanders.end()
    station.close()


def test_where_the_directory_is_another_script_s_that_is_why_nothing_is_written(
    tmp_path: Path,
) -> None:
    options = SnapshotOptions(tmp_path / "kept", "auto")
    kept = SnapshotDir(options, "another.py", "a")
    write = kept.order(Persist(attempt=0, step=3, start=1), 1, {0: 1})
    header = BayHeader(
        rank=0, world=1, id=SnapshotId(0, 3), pieces=0, table=0, image=0, notes_sum=0
    )
    fd = memory.make(bay_header.bay_bytes(0))
    os.pwrite(fd, bay_header.pack_sums([], header.id), bay_header.PAGE)
    os.pwrite(fd, header.pack(), 0)
    part_files.write(part_files.folder_of(write.directory, 1, 3), {0: fd}, write.manifest)
    os.close(fd)
    bystanders, station = Bystanders(str(tmp_path / "s")), Station()
    config = _config("--snapshot-every", "3", "--snapshot-dir", str(options.directory))
    notes = bystanders.look(config, "x.py", "a")
    keeper = bystanders.begin(config, START, station, lambda record: None)
    assert keeper is not None

    (unwritten,) = keeper.persist(Persist(attempt=0, step=6, start=2))

    assert isinstance(unwritten, Persisted)
    assert "are of another.py, and this job runs x.py" in unwritten.failed
    assert notes == [f"no snapshots are written: {unwritten.failed}"]
    bystanders.end()
    station.close()
