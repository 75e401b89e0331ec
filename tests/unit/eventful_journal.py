"""The journal of a run to which all happens that can: two losses at once, a return, a hang that is
given up, a plain restart from a checkpoint, and one from a snapshot.
"""

from pathlib import Path

from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.records import Json
from tests.unit.journals import HOME, REPLICAS, Story

CHECKPOINT, SNAPSHOT, FAILED_AT, LOST_AT = 20, 40, 29, 46
"""Steps of the script: first of the second attempt and of the third, last of the first two."""

STEPS, AGAIN = 60, (FAILED_AT + 1 - CHECKPOINT) + (LOST_AT + 1 - SNAPSHOT)


def eventful(run_dir: Path) -> Path:
    story = Story(run_dir)
    story.start()
    _promise(story, 0)
    story.steps(0, 11)
    _lose_two(story, 12)
    story.steps(13, 15)
    _come_back(story, 1, 16)
    story.steps(16, 20)
    _hang(story, 0, 21)
    story.steps(22, FAILED_AT)
    for _ in range(2):  # Once more by who takes over.
        story.write("straggler.find", "rank 3 is late in each step", step=FAILED_AT, rank=3,
                    score=0.2, lag_ms=90.0, kind="checkpoint")  # fmt: skip
    _begin_again(story, 1)
    _promise(story, CHECKPOINT)
    story.steps(0, LOST_AT - CHECKPOINT)
    story.write("time.spend", "", step=26, steps=26, data_ms=300.0, alone_ms=100.0,
                checkpoint_ms=900.0, imbalance_ms=200.0)  # fmt: skip
    number = SNAPSHOT - CHECKPOINT
    story.write("snapshot.safe", "the snapshot is safe", attempt=1, step=number)
    _begin_again(story, 2)
    story.write("snapshot.plan", "all ranks go back", attempt=2, of=1, step=number,
                back=LOST_AT + 1 - SNAPSHOT)  # fmt: skip
    story.wait(4.0)
    story.write("snapshot.restored", "", attempt=2, of=1, step=number, away_ms=6400.0,
                end_ms=300.0, state_ms=1900.0)  # fmt: skip
    _promise(story, SNAPSHOT)
    story.steps(0, STEPS - 1 - SNAPSHOT)
    for rank in range(6):
        story.write("worker.exit", f"rank {rank} exited with code 0", rank=rank, pid=6100 + rank,
                    code=0, signal=0, ours=False, error="")  # fmt: skip
    story.wait(0.3)
    story.end()
    return story.close()


def _promise(story: Story, step: int) -> None:
    story.write("promise.state", "as before", promise="exact-samples", microbatches=HOME,
                script_step=step, script_steps=STEPS - step)  # fmt: skip


def _lose_two(story: Story, step: int) -> None:
    """Replicas 1 and 2 die in one step, with three microbatches of theirs."""
    story.wait(0.2)
    story.exit(3, signal=9)
    story.kill(2)
    story.lose(1, 3, "rank 3 was killed by SIGKILL")
    story.exit(2, signal=9, ours=True)
    story.wait(0.05)
    story.exit(5, code=1, error="ValueError: bad shard 8812")
    story.kill(4)
    story.lose(2, 5, "rank 5 raised ValueError: bad shard 8812")
    story.exit(4, signal=9, ours=True)
    story.decide(step)
    story.commit(step, redone=3, ms=1085.0)
    story.recovered(step, {1: 3, 2: 5}, [(1, 0), (1, 1), (2, 0)])


def _come_back(story: Story, slot: int, step: int) -> None:
    members: list[Json] = [*REPLICAS[slot]]
    story.write("replica.start", f"replica {slot} is started again", slot=slot, ranks=members,
                number=1)  # fmt: skip
    for rank in REPLICAS[slot]:
        story.write("worker.spawn", "", rank=rank, pid=4200 + rank, incarnation=incarnation(0, 1))
        story.write("worker.hello", "hooks", rank=rank, torch="2.13.0")
    story.write("replica.ready", f"replica {slot} is ready", slot=slot, ranks=members)
    story.wait(0.2)
    story.live = sorted([*story.live, slot])
    story.generation += 1
    live: list[Json] = [*story.live]
    story.write("view.change", "it takes part again", generation=story.generation, live=live,
                lost_ranks=[], joined=members, step=step)  # fmt: skip
    story.write("replica.return", "", slot=slot, ranks=members, step=step, wait_ms=150.0,
                hold_ms=40.0)  # fmt: skip
    story.wait(0.3)
    story.write("replica.prove", "", slot=slot, ranks=members, step=step)


def _hang(story: Story, slot: int, step: int) -> None:
    """A rank keeps the others waiting, is given up, and is killed by us."""
    first, second = REPLICAS[slot]
    story.wait(2.0)
    story.write("hang.suspect", f"rank {second} keeps others waiting", hang=1, rank=second,
                step=step, phase="microbatch", lag_s=2.0, waiting=[3])  # fmt: skip
    story.wait(1.0)
    story.write("hang.condemn", f"rank {second} hangs", hang=1, rank=second, step=step,
                phase="microbatch", lag_s=3.0, where="data.py:131 load", proof="same")  # fmt: skip
    story.kill(first, second)
    story.lose(slot, second, f"rank {second} hangs in data.py:131")
    for rank in (second, first):
        story.exit(rank, signal=9, ours=True)
    story.decide(step)
    story.commit(step, redone=2, ms=3800.0)
    story.recovered(step, {slot: second}, [(slot, 0), (slot, 1)])


def _begin_again(story: Story, attempt: int) -> None:
    """The last replica fails, and all ranks are started again."""
    for slot in story.live:
        for rank in REPLICAS[slot]:
            pid = 4200 + rank if attempt == 1 else 5100 + rank
            story.write("worker.exit", f"rank {rank} was killed by SIGKILL", rank=rank, pid=pid,
                        code=-9, signal=9, ours=False, error="")  # fmt: skip
    story.write("job.restart", "no replica is left", attempt=attempt, restarts=attempt, of=3,
                root_rank=2)  # fmt: skip
    story.wait(2.0)
    story.live, story.generation = [0, 1, 2], 1
    for rank in range(6):
        pid = 4100 + 1000 * attempt + rank
        story.write("worker.spawn", "", rank=rank, pid=pid,
                    incarnation=incarnation(attempt, 0))  # fmt: skip
    story.wait(2.5)
    replicas: list[Json] = [[*members] for members in REPLICAS]
    story.write("topology.learn", "3 replicas of 2", strategy="fsdp2", replicas=replicas)
