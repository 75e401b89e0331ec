"""The text of a job file: a template, filled in with values that no file can be broken by.

jinja2 comes with torch, and is imported only where a template is rendered.
"""

import json
import re
import shlex
from dataclasses import asdict, dataclass
from importlib.resources import files

from recoverrun.deployments.deployment_table import NAMES, deployment
from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode

NODES_MOST, WORKERS_MOST = 100_000, 1024

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The values that a user may give for a job file."""

    nodes: int = 3
    least: int = 2  # replicas
    nproc: int = 0  # workers of each node; 0: one for each GPU, or as many as it has cores
    gpus: int = 0  # of each node
    image: str = "registry.example/train:1"
    name: str = "train"
    script: str = "train.py"  # with its arguments, as in a shell


def rendered(name: str, values: Values) -> str:
    """The job file `name`. Raises RecoverrunError for a name or a value that cannot be meant."""
    if name not in NAMES:
        sentence = f"there is no template {name!r:.40}: it may be {', '.join(NAMES)}"
        raise RecoverrunError(sentence, ExitCode.USAGE)
    words = _checked(values)
    from jinja2 import Environment, StrictUndefined  # Not at the top, see above.

    environment = Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # The filters below quote; nothing here is HTML.
    )
    environment.filters["json"] = json.dumps
    environment.filters["shell"] = shlex.join
    source = files("recoverrun.deployments").joinpath("sources", f"{deployment(name).file}.j2")
    text = source.read_text(encoding="utf-8")
    return environment.from_string(text).render(
        {
            **asdict(values),
            "words": words,
            "workers": values.nproc or values.gpus or "auto",
            "workers_or_one": values.nproc or values.gpus or 1,  # where nodes share a machine
        }
    )


def _checked(values: Values) -> list[str]:
    """The words of the script's command line. Raises RecoverrunError."""
    if not 2 <= values.nodes <= NODES_MOST:
        raise _usage(f"--nodes must be from 2 to {NODES_MOST}")
    if values.least < 1:
        raise _usage("--min must be at least 1")
    for name, count in (("nproc", values.nproc), ("gpus", values.gpus)):
        if not 0 <= count <= WORKERS_MOST:
            raise _usage(f"--{name} must be from 0 to {WORKERS_MOST}")
    if not _NAME.fullmatch(values.name):
        raise _usage("--name must be of small letters, digits and hyphens, 32 at most")
    if not _IMAGE.fullmatch(values.image):
        raise _usage("--image is no name of an image")
    try:
        words = shlex.split(values.script)
    except ValueError as error:
        raise _usage(f"--script: {str(error).lower()}") from error
    if not words or not all(map(str.isprintable, words)):
        raise _usage("--script must name a script, in one line")
    # These would be substitutions of the scheduler's own, or a unit's specifiers.
    if any(sign in word for word in words for sign in "$%`"):
        raise _usage("--script cannot have $, % or a backquote: write them into the file")
    return words


def _usage(sentence: str) -> RecoverrunError:
    return RecoverrunError(sentence, ExitCode.USAGE)
