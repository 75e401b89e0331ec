"""`recoverrun [options] train.py args...`: take this node's part in a training job."""

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from recoverrun.config.run_config import RunConfig, find_script
from recoverrun.launcher.agent import Agent
from recoverrun.launcher.network.key_lookup import find_key
from recoverrun.launcher.node.process import allow_connections, open_standard_streams
from recoverrun.launcher.output.error_file import hand_on, last_words
from recoverrun.launcher.output.run_dir import make_private_dir, make_run_dir
from recoverrun.text import ascii_only, encodes, named_signals, sanitize


def run(config: RunConfig) -> int:
    """Launch one node's part of a job; the exit code. Raises RecoverrunError if there is none."""
    began_at = time.monotonic()
    open_standard_streams()
    find_script(config)
    keyring = find_key(config, os.environ)
    if config.endpoints:
        allow_connections()
    stamp = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"
    run_dir = make_run_dir(config.run_dir, config.name, stamp)
    private = make_private_dir()
    try:
        agent = Agent(
            config=config,
            node=socket.gethostname() or "node",
            run_dir=run_dir,
            private=private,
            keyring=keyring,
            began_at=began_at,
            say=_say,
        )
        code = agent.run()
    finally:
        private.remove()
    if code:
        _say(_ending(agent, run_dir, code))
        reply = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if reply and agent.stopped is not None:
            stop, local_workers = agent.stopped, agent.local_workers
            left = None if local_workers is None else local_workers.error_file(stop.root_rank)
            hand_on(left, reply, code, stop.reason)
    return code


def _ending(agent: Agent, run_dir: Path, code: int) -> str:
    """What a failed job says last."""
    # Not at the top: a launcher that runs for weeks need not hold what only its end needs.
    from recoverrun.reports.failure_report import failure_report
    from rendezvous.journal.reader import read_run

    stop, local_workers = agent.stopped, agent.local_workers
    if stop is None or stop.root_rank < 0:
        return failure_report(read_run(run_dir), code, run_dir)
    # The coordinator's sentence, so that every node names the same cause.
    cause = f"FAILED: {stop.reason}" + (f" (node {stop.node})" if stop.node else "")
    if local_workers is None or stop.root_rank not in local_workers.ranks:
        # Our journal knows victims only.
        return f"{sanitize(named_signals(cause))}\n  journal: {run_dir}\n  exit {code}"
    left = local_workers.error_file(stop.root_rank)
    return failure_report(
        read_run(run_dir),
        code,
        run_dir,
        cause,
        stop.root_rank,
        traceback=last_words(str(left)).traceback if left is not None else (),
        stderr=local_workers.stderr(stop.root_rank),
    )


def _say(text: str) -> None:
    if sys.stderr is None:
        return  # It was closed before we began.
    shown = text if encodes(sys.stderr.encoding) else ascii_only(text)
    with suppress(OSError):  # That nobody reads any more must not end the job.
        print(shown, file=sys.stderr, flush=True)
