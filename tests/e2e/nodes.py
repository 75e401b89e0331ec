"""A protected job of several launchers with one fake worker each; the first one coordinates."""

import re
import signal
import time
from collections.abc import Callable

from recoverrun.config.option_values import Endpoint
from rendezvous.protocol.exit_codes import ExitCode
from tests.e2e.launching import PATIENCE_S, Launcher

SERVE = "*:hello topology serve"


class Nodes:
    def __init__(
        self,
        launcher: Launcher,
        many: int,
        *plans: str,
        host: str = "127.0.0.1",
        extra: tuple[str, ...] = (),
        within: Callable[[int], tuple[str, ...]] = lambda _: (),
        env: Callable[[int], dict[str, str] | None] = lambda _: None,
    ) -> None:
        """`within` is the command that runs the launcher of a node rank somewhere else."""
        self.endpoint = Endpoint(host=host, port=launcher.port())
        options = (f"--nnodes={many}", f"--rdzv-endpoint={self.endpoint}", *extra)
        self.options = options
        self.launches = [
            launcher.fake(
                *(plans or (SERVE,)),
                options=(*options, f"--node-rank={rank}"),
                within=within(rank),
                env=env(rank),
            )
            for rank in range(many)
        ]
        for rank, launch in enumerate(self.launches):
            launch.expect(f"rank {rank}: serves")

    def survivors_meet(self, survivors: list[int]) -> tuple[int, float]:
        """Wait until all of them are in a view without the others: its generation, when."""
        wanted = re.escape(str(survivors))
        met = [
            self.launches[rank].expect(rf"rank {rank}: view (\d+) of {wanted} at ([\d.]+)")
            for rank in survivors
        ]
        return max(int(one[1]) for one in met), max(float(one[2]) for one in met)

    def stand_still(self, lost: int) -> tuple[int, float]:
        """Stop a launcher until the others go on without it; it finds that when it wakes.

        Returns what `survivors_meet` does; the others still run.
        """
        self.launches[lost].send(signal.SIGSTOP)
        try:
            met = self.survivors_meet([rank for rank in range(len(self.launches)) if rank != lost])
        finally:
            self.launches[lost].send(signal.SIGCONT)
        assert self.launches[lost].finish() == ExitCode.PARTITIONED
        assert "the job went on without it" in self.launches[lost].output
        return met

    def first_with(self, event: str, ranks: list[int]) -> int:
        """Wait until the journal of one of them has such a record."""
        until = time.monotonic() + PATIENCE_S
        while not (found := [rank for rank in ranks if self.launches[rank].records(event)]):
            assert time.monotonic() < until, f"no {event} in the journals of {ranks}"
            time.sleep(0.05)  # Files that other processes write: there is nothing to wait on.
        return found[0]

    def stop(self, survivors: list[int]) -> None:
        for rank in survivors:
            self.launches[rank].send(signal.SIGINT)
        codes = [self.launches[rank].finish() for rank in survivors]
        assert codes == [ExitCode.INTERRUPTED] * len(survivors), codes
