"""A directory of snapshots as found before the job, each refusal with its sentence."""

import os
from pathlib import Path

import pytest

from recoverrun.config.snapshot_options import Resume, SnapshotOptions
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.snapshot_dir import SnapshotDir
from rendezvous.bays import memory, part_files
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.keeper_messages import Load
from rendezvous.protocol.snapshot_messages import Persist
from rendezvous.snapshots import bay_header
from rendezvous.snapshots.bay_header import PAGE, BayHeader
from rendezvous.snapshots.identity import SnapshotId, on_disk


def _opened(
    directory: Path, resume: Resume = "auto", script: str = "x.py", arguments: str = "a"
) -> SnapshotDir:
    return SnapshotDir(SnapshotOptions(directory, resume), script, arguments)


def _write(opened: SnapshotDir, step: int, start: int, world: int = 2) -> None:
    parts = dict.fromkeys(range(world), 1)
    order = opened.order(Persist(attempt=0, step=step, start=start), world, parts)
    for rank in range(world):
        header = BayHeader(
            rank=rank, world=world, id=SnapshotId(0, step), pieces=0, table=0, image=0, notes_sum=0
        )
        fd = memory.make(bay_header.bay_bytes(0))
        os.pwrite(fd, bay_header.pack_sums([], header.id), PAGE)
        os.pwrite(fd, header.pack(), 0)
        folder = part_files.folder_of(order.directory, start, step)
        part_files.write(folder, {rank: fd}, order.manifest)
        os.close(fd)


def _start(world: int, restore: str = "", attempt: int = 0, number: int = 1) -> Start:
    return Start(
        generation=1, attempt=attempt, number=number, node_rank=0, nnodes=1, first_rank=0,
        nproc=world, world_size=world, restore=restore, master_addr="", nodes=("a",),
    )  # fmt: skip


def test_all_that_is_there_is_offered_by_the_start_that_wrote_it(tmp_path: Path) -> None:
    _write(_opened(tmp_path), 40, 7)
    _write(_opened(tmp_path), 35, 8)

    held = _opened(tmp_path).held

    assert [(one[:4]) for one in held] == [
        (*on_disk(8, 35), 2, 0), (*on_disk(8, 35), 2, 1),
        (*on_disk(7, 40), 2, 0), (*on_disk(7, 40), 2, 1),
    ]  # fmt: skip


def test_a_start_has_a_number_above_all_that_is_known(tmp_path: Path) -> None:
    fresh = _opened(tmp_path / "a")
    _write(_opened(tmp_path / "b"), 40, 7)
    opened = _opened(tmp_path / "b", "never")
    assert (fresh.starts, opened.starts) == (0, 7)

    opened.begin(_start(2, number=12))

    assert opened.starts == 12


def test_parts_of_ranks_that_are_here_are_had_from_there(tmp_path: Path) -> None:
    _write(_opened(tmp_path), 40, 7)
    opened = _opened(tmp_path)

    loads = opened.loads("3:40@7", range(1, 2))

    [load] = loads
    assert isinstance(load, Load)
    assert (load.rank, load.attempt, load.step) == (1, 3, 40)
    assert Path(load.path).exists()
    assert opened.loads("0:40", range(1, 2)) == []  # it is in memory
    assert opened.loads("0:40@6", range(1, 2)) == []  # another run's, of another directory
    assert opened.loads("", range(1, 2)) == []


def test_files_of_a_snapshot_are_known_by_what_it_is_called_in_memory(tmp_path: Path) -> None:
    _write(_opened(tmp_path), 40, 7)
    opened = _opened(tmp_path)
    opened.loads("0:40@7", range(1, 2))
    opened.order(Persist(attempt=0, step=40, start=8), 2, {1: 9})
    opened.order(Persist(attempt=0, step=45, start=8), 2, {1: 9})

    found = opened.without([(0, 40), (3, 40)], range(1, 2))

    assert [Path(one).parent.name for one in found] == [
        "start-000007-step-000000000040", "start-000008-step-000000000040"
    ]  # fmt: skip
    assert {Path(one).name for one in found} == {"rank-000001.part"}
    assert Path(found[0]).exists()


def test_never_begins_anew_beside_what_is_there(tmp_path: Path) -> None:
    _write(_opened(tmp_path), 40, 7)

    assert _opened(tmp_path, "never").held == ()


def test_must_with_nothing_there(tmp_path: Path) -> None:
    words = f"--snapshot-resume=must: there is no snapshot in {tmp_path}"

    with pytest.raises(RecoverrunError, match=words) as caught:
        _opened(tmp_path, "must")
    assert caught.value.exit_code == 2


def test_snapshots_of_another_script_are_left_alone(tmp_path: Path) -> None:
    _write(_opened(tmp_path), 40, 7)
    words = f"the snapshots in {tmp_path} are of x.py, and this job runs y.py"

    other = _opened(tmp_path, script="y.py")

    assert (other.refusal, other.held) == (words, ())
    with pytest.raises(RecoverrunError, match=words) as caught:
        _opened(tmp_path, "must", script="y.py")
    assert caught.value.exit_code == 2


def test_other_arguments_are_said(tmp_path: Path) -> None:
    _write(_opened(tmp_path), 40, 7)

    [note] = _opened(tmp_path, arguments="b").notes

    assert note.startswith(f"the script's arguments are not those of the snapshot in {tmp_path}")
    assert _opened(tmp_path).notes == []


def test_another_number_of_ranks_is_not_begun_anew(tmp_path: Path) -> None:
    _write(_opened(tmp_path), 1240, 7, world=4)
    opened = _opened(tmp_path)
    words = f"the snapshot of step 1,240 in {tmp_path} is for 4 ranks, 2 came: start as many"

    with pytest.raises(RecoverrunError, match=words) as caught:
        opened.begin(_start(2))

    assert caught.value.exit_code == ExitCode.REQUEUE
    opened.begin(_start(4, "0:1240@7"))
    opened.begin(_start(2, attempt=1))


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(RecoverrunError, match="cannot be written to: ") as caught:
        _opened(tmp_path / "file")
    assert caught.value.exit_code == 2
