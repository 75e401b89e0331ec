"""Audits: two survivors execute the same microbatch of a lost rank, and compare what comes of it.

What the proofs have shown may stop being true long after: something of a rank begins to move that
nobody sees. So in the first transaction after a loss, in the second, the fourth and so on, and each
512th, a microbatch that one survivor has made up is executed by another one, too. If it comes out
otherwise, it depends on something that differs between the two, and so may differ from what the
lost rank had. And each survivor asks itself whether it still has reason to believe what it has made
up (`noted_evidence`, `doubts`).
"""

import zlib
from collections.abc import Callable, Mapping, Sequence

import torch

from ft_collectives.communicators.gather_objects import gather
from ft_collectives.step.reducer import Piece, Reducer
from recoverrun.worker.context.evidence import crc_of, crc_of_streams
from recoverrun.worker.make_up.made_microbatch import MadeMicrobatch
from recoverrun.worker.make_up.noted_evidence import own_mismatch
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.views import Identity

FIRST, EVERY = 1, 512
"""Transactions after a loss until the first audit, and from one audit to the next at most."""

UNLIKE = (
    "rank {rank}'s microbatch {index} of step {step}, executed by ranks {by}, {what}: "
    "something that it depends on differs between them, and what was made up for it from "
    "step {since} on may not have been its own"
)
NOT_ITSELF = "{why}; what was made up from step {since} on may not have been its own"
WHAT = (
    "had other inputs",
    "drew other random numbers",
    "had another loss",
    "gave another gradient",
)
"""In the order of a report."""

Report = list[int]
"""Digests of an execution; 0 where there is nothing that two processes have to have in common."""


Witness = Callable[[Identity, int], MadeMicrobatch]
"""Executes a microbatch of a lost rank once more, for it to be compared."""


class Audits:
    """The audits of a worker's survivors."""

    def __init__(self, worker: WorkerState, executor: Executor) -> None:
        self._worker = worker
        self._executor = executor
        self._since = 0  # transactions since the last loss
        self._at = FIRST + 1  # not in the struck transaction, which has waited long enough
        self._shown = 0  # the transaction of the last audit, or before the last loss
        self._lost: list[int] = []

    @property
    def due(self) -> bool:
        """True if one is due as this rank counts, in the present transaction: others may have begun
        one later.
        """
        machine = self._worker.machine
        return machine is not None and self._since + 1 >= self._at

    def committed(self, step: int, lost: list[int]) -> None:
        """Transaction `step` is over; these ranks are lost."""
        self._since += bool(lost)
        if lost != self._lost:
            self._lost, self._since, self._at, self._shown = lost, 0, FIRST, step

    def run(
        self,
        generation: int,
        executors: Mapping[tuple[int, int], int],
        made: Mapping[Identity, MadeMicrobatch],
        execute: Witness,
        guessed: Callable[[], str],
    ) -> tuple[set[Identity], str]:
        """All ranks enter. Which microbatches were audited, and why they are not to be believed,
        or "". Each rank audits itself, too (`noted_evidence`, `guessed`): if one fails, nothing is
        believed.

        `executors` tells who has executed which microbatch of which lost rank, `made` is what this
        rank has made up itself. Superseded if `generation` ends first.
        """
        worker = self._worker
        protection = worker.protection
        layout, machine = protection.layout, protection.machine
        (rank, index), executed_by = min(executors.items())
        identity, live = (layout.slot(rank), index), sorted(machine.view.live)
        auditor = live[(live.index(layout.slot(executed_by)) + 1) % len(live)]
        again = machine.slot == auditor and len(live) > 1
        mine = execute(identity, rank) if again else made.get(identity)
        distrust = own_mismatch(worker, self._executor)  # shard mates do both
        words = {"found": report_of(worker, mine), "own": guessed() or distrust}
        heard = gather(protection.fabric, protection.peers, generation, words)
        self._at = self._since + 1 + min(self._since + 1, EVERY)
        failed = [said["own"] for _, said in sorted(heard.items()) if said["own"]]
        if failed:
            known = {(layout.slot(rank), index) for rank, index in executors}
            return known, NOT_ITSELF.format(why=failed[0], since=self._shown)
        by = {one: said["found"] for one, said in heard.items() if said["found"]}
        what = difference(list(by.values()))
        if not what:
            self._shown = worker.step
            return {identity}, ""
        ranks, since = " and ".join(map(str, sorted(by))), self._shown
        return {identity}, UNLIKE.format(
            rank=rank, index=index, step=worker.step, by=ranks, what=what, since=since
        )


def report_of(worker: WorkerState, made: MadeMicrobatch | None) -> Report:
    """The report of one survivor on its execution; empty if there was none."""
    layout, strategy = worker.protection.layout, worker.protection.strategy
    if made is None or made.executed is None or made.executed.after is None:
        return []
    inputs, loss = made.executed.mark
    # Bits may differ if several threads or other shards share the sums.
    bitwise = torch.get_num_threads() == 1 and not torch.cuda.is_initialized()
    alone = strategy.alone and layout.shards == 1
    gradient = gradient_of(made.pieces) if bitwise and alone else 0
    streams = crc_of_streams(made.executed.after.streams)
    return [inputs, streams, loss if bitwise else 0, gradient]


def gradient_of(pieces: list[tuple[Reducer, Piece]]) -> int:
    """A digest of what lies in the memory of the host."""
    crc = 0
    for _, piece in pieces:
        for part in piece.values():
            if part.is_cpu:
                size = part.numel() * part.element_size()
                crc = zlib.crc32(crc_of(part.contiguous(), 0, size).to_bytes(4, "little"), crc)
    return crc


def difference(reports: Sequence[Report]) -> str:
    """The difference between reports, in words; "" if there is none, or only one report."""
    for what, values in zip(WHAT, zip(*reports, strict=True), strict=False):
        if len(set(values) - {0}) > 1:
            return what
    return ""
