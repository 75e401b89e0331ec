"""The journal of a run to which all happens that can: two losses at once, a return, a hang that is
given up, a plain restart from a checkpoint, and one from a snapshot.
"""

from pathlib import Path

from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.records import Json
from tests.unit.journals import HOME, REPLICAS, Scene

CHECKPOINT, SNAPSHOT, FAILED_AT, LOST_AT = 20, 40, 29, 46
"""Steps of the script: first of the second attempt and of the third, last of the first two."""

STEPS, AGAIN = 60, (FAILED_AT + 1 - CHECKPOINT) + (LOST_AT + 1 - SNAPSHOT)


def eventful(run_dir: Path) -> Path:
    scene = Scene(run_dir)
    scene.start()
    _promise(scene, 0)
    scene.steps(0, 11)
    _lose_two(scene, 12)
    scene.steps(13, 15)
    _come_back(scene, 1, 16)
    scene.steps(16, 20)
    _hang(scene, 0, 21)
    scene.steps(22, FAILED_AT)
    for _ in range(2):  # Once more by who takes over.
        scene.write("straggler.find", "rank 3 is late in each step", step=FAILED_AT, rank=3,
                    score=0.2, lag_ms=90.0, kind="checkpoint")  # fmt: skip
    _begin_again(scene, 1)
    _promise(scene, CHECKPOINT)
    scene.steps(0, LOST_AT - CHECKPOINT)
    scene.write("time.spend", "", step=26, steps=26, data_ms=300.0, alone_ms=100.0,
                checkpoint_ms=900.0, imbalance_ms=200.0)  # fmt: skip
    number = SNAPSHOT - CHECKPOINT
    scene.write("snapshot.safe", "the snapshot is safe", attempt=1, step=number)
    _begin_again(scene, 2)
    scene.write("snapshot.plan", "all ranks go back", attempt=2, of=1, step=number,
                back=LOST_AT + 1 - SNAPSHOT)  # fmt: skip
    scene.wait(4.0)
    scene.write("snapshot.restored", "", attempt=2, of=1, step=number, away_ms=6400.0,
                end_ms=300.0, state_ms=1900.0)  # fmt: skip
    _promise(scene, SNAPSHOT)
    scene.steps(0, STEPS - 1 - SNAPSHOT)
    for rank in range(6):
        scene.write("worker.exit", f"rank {rank} exited with code 0", rank=rank, pid=6100 + rank,
                    code=0, signal=0, ours=False, error="")  # fmt: skip
    scene.wait(0.3)
    scene.end()
    return scene.close()


def _promise(scene: Scene, step: int) -> None:
    scene.write("promise.state", "as before", promise="exact-samples", microbatches=HOME,
                script_step=step, script_steps=STEPS - step)  # fmt: skip


def _lose_two(scene: Scene, step: int) -> None:
    """Replicas 1 and 2 die in one step, with three microbatches of theirs."""
    scene.wait(0.2)
    scene.exit(3, signal=9)
    scene.kill(2)
    scene.lose(1, 3, "rank 3 was killed by SIGKILL")
    scene.exit(2, signal=9, ours=True)
    scene.wait(0.05)
    scene.exit(5, code=1, error="ValueError: bad shard 8812")
    scene.kill(4)
    scene.lose(2, 5, "rank 5 raised ValueError: bad shard 8812")
    scene.exit(4, signal=9, ours=True)
    scene.decide(step)
    scene.commit(step, redone=3, ms=1085.0)
    scene.recovered(step, {1: 3, 2: 5}, [(1, 0), (1, 1), (2, 0)])


def _come_back(scene: Scene, slot: int, step: int) -> None:
    members: list[Json] = [*REPLICAS[slot]]
    scene.write("replica.start", f"replica {slot} is started again", slot=slot, ranks=members,
                number=1)  # fmt: skip
    for rank in REPLICAS[slot]:
        scene.write("worker.spawn", "", rank=rank, pid=4200 + rank, incarnation=incarnation(0, 1))
        scene.write("worker.hello", "hooks", rank=rank, torch="2.13.0")
    scene.write("replica.ready", f"replica {slot} is ready", slot=slot, ranks=members)
    scene.wait(0.2)
    scene.live = sorted([*scene.live, slot])
    scene.generation += 1
    live: list[Json] = [*scene.live]
    scene.write("view.change", "it takes part again", generation=scene.generation, live=live,
                lost_ranks=[], joined=members, step=step)  # fmt: skip
    scene.write("replica.return", "", slot=slot, ranks=members, step=step, wait_ms=150.0,
                hold_ms=40.0)  # fmt: skip
    scene.wait(0.3)
    scene.write("replica.prove", "", slot=slot, ranks=members, step=step)


def _hang(scene: Scene, slot: int, step: int) -> None:
    """A rank keeps the others waiting, is given up, and is killed by us."""
    first, second = REPLICAS[slot]
    scene.wait(2.0)
    scene.write("hang.suspect", f"rank {second} keeps others waiting", hang=1, rank=second,
                step=step, phase="microbatch", lag_s=2.0, waiting=[3])  # fmt: skip
    scene.wait(1.0)
    scene.write("hang.condemn", f"rank {second} hangs", hang=1, rank=second, step=step,
                phase="microbatch", lag_s=3.0, where="data.py:131 load", proof="same")  # fmt: skip
    scene.kill(first, second)
    scene.lose(slot, second, f"rank {second} hangs in data.py:131")
    for rank in (second, first):
        scene.exit(rank, signal=9, ours=True)
    scene.decide(step)
    scene.commit(step, redone=2, ms=3800.0)
    scene.recovered(step, {slot: second}, [(slot, 0), (slot, 1)])


def _begin_again(scene: Scene, attempt: int) -> None:
    """The last replica fails, and all ranks are started again."""
    for slot in scene.live:
        for rank in REPLICAS[slot]:
            pid = 4200 + rank if attempt == 1 else 5100 + rank
            scene.write("worker.exit", f"rank {rank} was killed by SIGKILL", rank=rank, pid=pid,
                        code=-9, signal=9, ours=False, error="")  # fmt: skip
    scene.write("job.restart", "no replica is left", attempt=attempt, restarts=attempt, of=3,
                root_rank=2)  # fmt: skip
    scene.wait(2.0)
    scene.live, scene.generation = [0, 1, 2], 1
    for rank in range(6):
        pid = 4100 + 1000 * attempt + rank
        scene.write("worker.spawn", "", rank=rank, pid=pid,
                    incarnation=incarnation(attempt, 0))  # fmt: skip
    scene.wait(2.5)
    replicas: list[Json] = [[*members] for members in REPLICAS]
    scene.write("topology.learn", "3 replicas of 2", strategy="fsdp2", replicas=replicas)
