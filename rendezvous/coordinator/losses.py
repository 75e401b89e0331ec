"""The state of a lost replica, and its meaning for the job's exit code."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rendezvous.coordinator.error_kinds import tells_of_a_disk, tells_of_another
from rendezvous.protocol.exit_codes import ExitCode, code_for_lost
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Exited
from rendezvous.protocol.records import INHERITED, PART, Json, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One lost replica; `lost_at` is in seconds of the coordinator's clock."""

    slot: int  # -1 while the topology is unknown
    root_rank: int
    code: int  # exit code of the root rank, negative for a signal
    generation: int  # that begins without it
    lost_at: float
    failed_at: float  # on the same clock, when its root rank failed
    detected_s: float
    error: str
    reason: str
    hung: bool = False  # its root rank lives, and is to be ended
    node: str = ""  # of its root rank, if that has ended by itself

    @classmethod
    def of_exit(
        cls, exited: Exited, *, layout: Layout | None, generation: int, now: float
    ) -> "Loss":
        return cls(
            slot=-1 if layout is None else layout.slot(exited.rank),
            root_rank=exited.rank,
            code=exited.code,
            generation=generation,
            lost_at=now,
            failed_at=now - max(0.0, exited.age_s),
            detected_s=exited.detected_s,
            error=exited.error,
            reason=f"rank {exited.rank} {cause_of(exited)}",
            node=exited.node,
        )

    @classmethod
    def of_node(
        cls,
        ranks: Iterable[int],
        reason: str,
        *,
        layout: Layout | None,
        generation: int,
        now: float,
        silent_s: float = 0.0,
    ) -> "list[Loss]":
        """Their launcher is gone, or was heard last `silent_s` ago: nobody knows how they ended,
        and they may never be reaped.
        """
        return [
            cls(
                slot=-1 if layout is None else layout.slot(rank),
                root_rank=rank,
                code=-9,
                generation=generation,
                lost_at=now,
                failed_at=now - silent_s,
                detected_s=silent_s,
                error="",
                reason=reason,
            )
            for rank in ranks
        ]

    @classmethod
    def of_former(
        cls,
        ranks: Sequence[int],
        ends: Iterable[Exited],
        nodes: Iterable[tuple[str, tuple[int, ...], str]],
        *,
        layout: Layout,
        generation: int,
        now: float,
    ) -> "Loss":
        """The loss of the replica with these `ranks` that a former coordinator has seen: by what
        launchers still know of their `ends`, or by the lost `nodes`, each with its ranks and why.
        """
        own = [one for one in ends if one.rank in ranks and not one.ours and one.code]
        if own:
            first = max(own, key=lambda one: one.age_s)
            return cls.of_exit(first, layout=layout, generation=generation, now=now)
        for name, there, why in nodes:
            lost = [rank for rank in ranks if rank in there]
            if lost:
                words = f"node {name} is lost: {why}"
                return cls.of_node(lost, words, layout=layout, generation=generation, now=now)[0]
        words = f"rank {ranks[0]} is lost, as the former coordinator knew"
        return cls.of_node(ranks, words, layout=layout, generation=generation, now=now)[0]

    @property
    def order(self) -> tuple[bool, float]:
        """A sort key: the least of several is the cause; a loss that tells of another is none."""
        return tells_of_another(self.error) or self.code == ExitCode.AWAY, self.failed_at

    @property
    def failed_by_itself(self) -> bool:
        """True if its root rank's own script said so, by an exception or an exit code, and not
        because of another rank.
        """
        return bool(self.node) and self.code > 0 and not self.order[0]

    @classmethod
    def of_diverged(
        cls, rank: int, reason: str, *, layout: Layout, generation: int, now: float
    ) -> "Loss":
        """The loss of a rank that has come back, and does otherwise than those that were never
        lost.
        """
        return cls._of_living(
            rank, ExitCode.AWAY, reason, layout=layout, generation=generation, now=now
        )

    @classmethod
    def of_parameters(
        cls, rank: int, reason: str, *, layout: Layout, generation: int, now: float
    ) -> "Loss":
        """The loss of a rank that lives and holds other parameters than the others: it must not go
        on.
        """
        return cls._of_living(
            rank, ExitCode.INVARIANT, reason, layout=layout, generation=generation, now=now
        )

    @classmethod
    def _of_living(
        cls, rank: int, code: int, reason: str, *, layout: Layout, generation: int, now: float
    ) -> "Loss":
        return cls(
            slot=layout.slot(rank),
            root_rank=rank,
            code=code,
            generation=generation,
            lost_at=now,
            failed_at=now,
            detected_s=0.0,
            error="",
            reason=reason,
        )

    def caused_by(self, ended: Sequence[int]) -> "Loss":
        """This loss, or, if its error only tells of another's end, that of the first shard mate
        whose script has `ended`: the rank had it for its forward.
        """
        if not ended or not tells_of_another(self.error):
            return self
        reason = f"rank {ended[0]} exited with code 0 while its replica trained"
        return replace(self, root_rank=ended[0], code=0, error="", reason=reason)

    def alike(
        self, others: Iterable["Loss"], committed_at: float, *, several_nodes: bool
    ) -> "Loss | None":
        """A loss of another replica by the same exception, with no step committed since.

        Where it tells of a disk, or both were on one of `several_nodes`, it may be the machine that
        they share, and others may go on.
        """
        if tells_of_a_disk(self.error):
            return None
        for other in others:
            same = other.slot != self.slot and other.error == self.error != ""
            shared = several_nodes and other.node == self.node
            if same and not shared and committed_at <= other.lost_at:
                return other
        return None

    def record(self, layout: Layout, *, inherited: bool = False) -> Record:
        """`inherited`: a former coordinator may have recorded it."""
        fields: dict[str, Json] = {
            "slot": self.slot,
            "root_rank": self.root_rank,
            "ranks": list(layout.replicas[self.slot]),
            "generation": self.generation,
        }
        if inherited:
            fields |= {PART: True, INHERITED: True}
        return Record("replica.lost", self.reason, fields)


def code_of(loss: Loss) -> int:
    """The job's exit code if it ends with this loss."""
    return ExitCode.HANG if loss.hung else code_for_lost(loss.code)


JobEnd = tuple[int, str, int]
"""Exit code, reason and root rank of a job that ends."""


def too_few(root: Loss, left: int, least: int) -> JobEnd:
    """The verdict on a job of which so many replicas are left after `root`."""
    code = ExitCode.BELOW_MINIMUM if left and not root.hung else code_of(root)
    return code, f"{root.reason}; {left} of at least {least} replicas are left", root.root_rank


def done_twice(one: Loss, two: Loss) -> JobEnd:
    """The verdict on a job in which two replicas were lost by the same exception."""
    root, other = sorted((one, two), key=lambda loss: loss.order)
    words = f"rank {other.root_rank} did the same: an error of the script itself"
    return code_for_lost(root.code), f"{root.reason}; {words}", root.root_rank


def early_ends(
    ranks: Iterable[int], step: int, layout: Layout | None, generation: int, now: float
) -> list[Loss]:
    """The losses where processes ended, but not their script: something called `os._exit(0)`."""
    return [
        Loss(
            slot=-1 if layout is None else layout.slot(rank),
            root_rank=rank,
            code=0,
            generation=generation,
            lost_at=now,
            failed_at=now,
            detected_s=0.0,
            error="",
            reason=f"rank {rank} exited with code 0 before the end of step {step}",
        )
        for rank in ranks
    ]


def cause_of(exited: Exited) -> str:
    """The end of a worker, as words behind its name."""
    if exited.code < 0:
        # No colon: what stands behind one is an exception, which a script may raise everywhere.
        return f"was ended by signal {-exited.code}" + " (out of memory)" * exited.starved
    return f"exited with code {exited.code}" + (f": {exited.error}" if exited.error else "")
