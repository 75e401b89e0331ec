"""`recoverrun [options] train.py args...`: take this node's part in a training job."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from recoverrun.config.given_options import Options
from recoverrun.config.option_values import Endpoint
from recoverrun.config.run_config import RunConfig, find_script
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.agent import Agent
from recoverrun.launcher.network.connections import Place
from recoverrun.launcher.network.key_lookup import find_key
from recoverrun.launcher.node.process import allow_connections, open_standard_streams
from recoverrun.launcher.node.signals import MESSENGERS, SignalInbox
from recoverrun.launcher.output.error_file import hand_on, last_words
from recoverrun.launcher.output.patience import Patience
from recoverrun.launcher.output.run_dir import make_private_dir
from recoverrun.launcher.output.run_folder import RunFolder
from recoverrun.launcher.output.speaker import Speaker
from rendezvous.protocol.exit_codes import ExitCode

READ_S = 10.0
"""How long the end of a job waits for a disk to give what its report is made of."""


ASKS_S = 60.0
"""The time for which a node that was left out asks others that do not answer for a place."""

COMES_BACK = (
    "{}; its workers are ended, and this node asks the others for a place again, "
    "for {:.0f} s if nobody answers"
)


class LeftOut(NamedTuple):
    """The others went on without this node, for this `reason`; with `config` it asks them again."""

    config: RunConfig
    reason: str


def run(config: RunConfig, options: Options) -> int:
    """Launch one node's part of a job; the exit code. Raises RecoverrunError if there is none.

    A node without which the others went on comes back as a newcomer, where lost replicas come back.
    """
    open_standard_streams()  # Before anything has a descriptor, which could be one of theirs.
    # Held until the job's last line is said: a Ctrl-C too many must not cost the user the verdict.
    signals = SignalInbox((*config.signals, *MESSENGERS, signal.SIGCHLD))
    try:
        ended = _accompanied(config, options, signals, "")
        while isinstance(ended, LeftOut):
            ended = _accompanied(ended.config, options, signals, ended.reason)
        return ended
    finally:
        signals.close()


def _accompanied(
    config: RunConfig, options: Options, signals: SignalInbox, left_out: str
) -> int | LeftOut:
    """Do `_take_part`, beside a process that tells others of it if there is anything to tell."""
    with _setting_up(config, left_out, signals):
        find_script(config)  # Before anything is started.
    if not (options.metrics_port or options.on_event or options.notify_url or options.otlp):
        return _take_part(config, signals, lambda run_dir: None, left_out)
    # Not at the top: most runs have no companion.
    from recoverrun.companion.companion_order import order_of, to_json
    from recoverrun.launcher.output.companion_process import CompanionProcess

    order = order_of(options)
    companion = CompanionProcess(to_json(order))
    try:
        return _take_part(config, signals, companion.begin, left_out)
    finally:
        if untold := companion.close():
            with closing(Speaker(sys.stderr)) as speaker:
                speaker.say(untold)


def _take_part(
    config: RunConfig, signals: SignalInbox, made: Callable[[Path], None], left_out: str
) -> int | LeftOut:
    """Take part in the job until its end: the exit code, unless the others went on without us.

    `made` is told the run directory once it is there. `left_out`: why they did before, or "".
    """
    began_at = time.monotonic()
    warnings = allow_connections(config.nproc, config.nnodes)
    config = replace(config, notes=(*config.notes, *warnings))
    keyring = find_key(config, os.environ)
    with _setting_up(config, left_out, signals):
        stamp = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"
        folder = RunFolder(config.run_dir, config.name, stamp, made, config.meeting)
        private = make_private_dir(config.nproc)
    speaker = Speaker(sys.stderr)
    try:
        with _setting_up(config, left_out, signals):
            agent = Agent(
                config=config,
                node=_node_name(),
                folder=folder,
                private=private,
                keyring=keyring,
                signals=signals,
                began_at=began_at,
                say=speaker.say,
                left_out=left_out,
            )
        code = agent.run()
        if _comes_back(config, agent):
            connections = agent.job_client.connections
            found = asks_again(config, connections.places.values(), had=connections.at_endpoint)
            reason = agent.stopped.reason if agent.stopped else ""
            speaker.say(COMES_BACK.format(reason, found.join_timeout_s))
            return LeftOut(found, reason)
        if code:
            short = f"FAILED: exit {code}; the run directory {folder.path} stalls"
            report = Patience[str](READ_S).ask(lambda: _ending(agent, folder.path, code), short)
            speaker.say(report)
        elif agent.recorder.announcer.losses:
            report = Patience[str](READ_S).ask(lambda: _survived(folder.path), "")
            if report:
                speaker.say(report)
    finally:
        private.remove()
        speaker.close()
    if code:
        reply = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if reply and agent.stopped is not None:
            stop, local_workers = agent.stopped, agent.local_workers
            left = (
                None
                if local_workers is None
                else local_workers.processes.error_file(stop.root_rank)
            )
            hand_on(left, reply, code, stop.reason)
    return code


@contextmanager
def _setting_up(config: RunConfig, left_out: str, signals: SignalInbox) -> Iterator[None]:
    """Tell the other nodes of an error before there is a job, as they wait for this one. A limit of
    the system is an error for the user, too.
    """
    try:
        with _within_limits():
            yield
    except RecoverrunError as error:
        if not left_out:
            _tell_others(config, error, signals)
        raise


@contextmanager
def _within_limits() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        sentence = f"the launcher gets too little from this system to begin: {why}"
        raise RecoverrunError(sentence, ExitCode.USAGE) from error


def _tell_others(config: RunConfig, error: RecoverrunError, signals: SignalInbox) -> None:
    from recoverrun.launcher.network.absence import tell_absence  # Not at the top, as below.

    with suppress(RecoverrunError), closing(Speaker(sys.stderr)) as speaker:
        keyring = find_key(config, os.environ)  # Without it nobody would listen.
        tell_absence(
            config, keyring, error, node=_node_name(), say=speaker.say,
            watched=os.isatty(2), leaves=lambda: signals.stopper() is not None,
        )  # fmt: skip


def _node_name() -> str:
    return socket.gethostname() or "node"


def _comes_back(config: RunConfig, agent: Agent) -> bool:
    """True if the others went on without this node, and it may have a place again."""
    out = agent.stopped is not None and agent.stopped.exit_code == ExitCode.PARTITIONED
    return out and config.recovery_policy.returns and bool(agent.job_client.connections.places)


def asks_again(config: RunConfig, others: Iterable[Place], *, had: bool) -> RunConfig:
    """The configuration with which a node that was left out asks again: at any of the `others`.

    Not at the endpoint: it may have listened there itself (`had`), and would wait for others to
    come; it listens there again once it has a place. Not for as long as at the beginning: they may
    have ended, or be cut off for good.
    """
    endpoints = tuple(Endpoint(host=host, port=port) for host, port in others)
    limit_s = min(config.join_timeout_s, ASKS_S)
    return replace(
        config,
        endpoints=endpoints,
        met_at=config.of_job,
        must_host=False,
        may_host=False,
        had_endpoint=had,
        join_timeout_s=limit_s,
    )


def _survived(run_dir: Path) -> str:
    """The last line of a job that survived losses."""
    from recoverrun.reports.closing_line import closing_line  # Not at the top, as below.
    from rendezvous.journal.reader import read_run

    return closing_line(read_run(run_dir), run_dir)


def _ending(agent: Agent, run_dir: Path, code: int) -> str:
    """The last line of a failed job: the verdict that `postmortem` and `status` give, too."""
    # Not at the top: a launcher that runs for weeks need not hold what only its end needs.
    from recoverrun.reports.failure_report import failure_report, without_journal
    from rendezvous.journal.reader import read_run

    log, local_workers = read_run(run_dir), agent.local_workers
    root_rank = -1 if agent.stopped is None else agent.stopped.root_rank
    if not log.entries:
        return without_journal(agent.stopped.reason if agent.stopped else "", code, run_dir)
    if local_workers is None or root_rank not in local_workers.ranks:
        return failure_report(log, code, run_dir)
    left = local_workers.processes.error_file(root_rank)
    return failure_report(
        log,
        code,
        run_dir,
        traceback=last_words(str(left)).traceback if left is not None else (),
        stderr=local_workers.processes.stderr(root_rank),
    )
