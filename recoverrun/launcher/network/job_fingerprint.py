"""The things that the nodes of one job have in common, told when they join so that strangers are
noticed.

Two jobs with the same name at the same place, or two versions of torch in one job, fail late and
far from their cause. Arguments may rightly differ from node to node, so they only cause a remark;
they travel as a short digest, because they may hold what is nobody's business.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path

from recoverrun.config.run_config import RunConfig
from recoverrun.config.snapshot_options import usual_every
from recoverrun.version import __version__
from rendezvous.protocol.formation_messages import Join, Running
from rendezvous.protocol.records import Record, notice
from rendezvous.protocol.snapshot_messages import Held, Share

TORCH_TRIED = ((2, 11), (2, 14))
"""The oldest and the newest minor version of torch with which our tests have passed."""

UNTRIED = "recoverrun was never tried with torch {}, only with {}.{} to {}.{}"

_VERSION = re.compile(r"^__version__ = ['\"]([^'\"+]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JobFingerprint:
    """The fingerprint of the job that this launcher is about to run."""

    script: str
    arguments: str
    content: str  # a digest of the script's file, "" where it is none
    torch: str  # "" if there is none, or another Python runs the workers
    python: str  # the same


def job_fingerprint(config: RunConfig) -> JobFingerprint:
    script = f"-m {config.script}" if config.module else Path(config.script).name
    digest = blake2b("\0".join(config.arguments).encode(errors="surrogatepass"), digest_size=4)
    return JobFingerprint(
        script=script,
        arguments=digest.hexdigest(),
        content="" if config.module or config.no_python else script_digest(config.script),
        torch="" if config.no_python else _torch_version(),
        python="" if config.no_python else "{}.{}".format(*sys.version_info),
    )


def join_message(
    config: RunConfig,
    *,
    node: str,
    incarnation: str,
    master: str,
    attempt: int,
    agreement: str,
    listen: int,
    holding: tuple[tuple[Held, ...], tuple[Share, ...]] = ((), ()),
    starts: int = 0,
) -> Join:
    """Return how a node asks for a place in the job, with the fingerprint of what it runs.

    `holding`: the parts of snapshots and the parity that it has; `starts`: see `Join`.
    """
    fingerprint = job_fingerprint(config)
    return Join(
        run_id=config.run_id,
        node=node,
        incarnation=incarnation,
        node_rank=config.node_rank,
        nproc=config.nproc,
        version=__version__,
        role=config.role,
        master=master,
        attempt=attempt,
        agreement=agreement,
        listen=listen,
        holding=holding[0],
        shares=holding[1],
        starts=starts,
        script=fingerprint.script,
        arguments=fingerprint.arguments,
        content=fingerprint.content,
        torch=fingerprint.torch,
        python=fingerprint.python,
        options=_common_options(config),
    )


def running_message(join: Join, nnodes: int) -> Running:
    """The message of the launcher that coordinates a job, and would say `join`, to its endpoint."""
    return Running(
        run_id=join.run_id,
        nnodes=nnodes,
        listen=join.listen,
        script=join.script,
        arguments=join.arguments,
        agreement=join.agreement,
        options=join.options,
    )


def is_same_job(running: Running, join: Join, nnodes: int) -> bool:
    """True if a launcher that would say `join` was started with the command of that job.

    Another job at the place where a lost node listened is not disturbed, whatever its name.
    """
    own = running_message(join, nnodes)
    return running == replace(own, listen=running.listen, address=running.address)


def _common_options(config: RunConfig) -> tuple[str, ...]:
    """The options that decide what workers exchange, as far as they are given."""
    policy = config.recovery_policy
    least, most = config.nnodes_least, config.nnodes
    usual = usual_every(protects=config.protect, least=least, most=most)
    given = {
        "--no-python" if config.no_python else "--no-protect": not config.protect,
        "--exact": config.exact,
        "--check-finite": config.check_finite,
        f"--check-params-every={config.digest_every}": config.digest_every > 0,
        f"--snapshot-every={policy.snapshot_every}": policy.snapshot_every != usual,
        "--no-return": config.protect and not policy.returns,
    }
    return tuple(option for option, is_given in given.items() if is_given)


def untried(torch: str) -> str:
    """Return what has to be said of this version of torch, or "". None is nothing to speak of."""
    numbers = tuple(int(part) for part in torch.split(".")[:2] if part.isdigit())
    oldest, newest = TORCH_TRIED
    if not torch or oldest <= numbers <= newest:
        return ""
    return UNTRIED.format(torch, *oldest, *newest)


def differences(joins: Sequence[Join]) -> list[Record]:
    """Records of new torch versions, and of what may differ from node to node: arguments, the
    version of Python, the content of the script.
    """
    said = [untried(torch) for torch in sorted({join.torch for join in joins})]
    found = [notice(words) for words in said if words]
    for join in joins:
        first = next(other for other in joins if other.role == join.role)
        if join.arguments != first.arguments:
            words = f"{join.script} has other arguments on {join.node} than on {first.node}"
            found.append(notice(words))
        if join.content and first.content and join.content != first.content:
            words = f"{join.script} on {join.node} is another file than on {first.node}"
            found.append(notice(f"{words}: their contents differ"))
        if join.python and first.python and join.python != first.python:
            words = f"{join.node} has Python {join.python}, {first.node} {first.python}"
            found.append(notice(f"{words}: ranks may not compute alike"))
    return found


def script_digest(script: str) -> str:
    """A digest of this file, "" if it cannot be read."""
    try:
        return blake2b(Path(script).read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return ""


@cache
def _torch_version() -> str:
    """The version of torch by its files: the launcher never imports torch."""
    found = PathFinder.find_spec("torch", sys.path)
    if found is None or found.origin is None:
        return ""
    try:
        text = Path(found.origin).with_name("version.py").read_text()
    except OSError:
        return ""
    match = _VERSION.search(text)
    return match[1] if match is not None else ""
