"""The secrets that must not leave a machine with a report: in command lines, journals and logs.

Nothing can know all secrets. Named ones (`--api-key X`, `TOKEN=X`, `"password": "X"`), those in
addresses, and those with a well-known shape are masked; of the environment only what a list allows
is told at all.
"""

import re
from collections.abc import Mapping

MASK = "[masked]"

_WORDS = (
    r"(?:api[-_]?key|[-_]key(?![a-z])|secret|token(?!iz)|passw(?:or)?d|passphrase|credential"
    r"|authorization|cookie)"
)
_QUOTE = r"(?:\\?[\"'])?"
_VALUE = r"(?:(?:Bearer|Basic)\s+)?[^\s\"'\\,;&}\]]{3,4096}"

_NAME = rf"{_WORDS}[\w.-]{{0,40}}"
"""Of a name, from the word that tells on: what stands before it stays in any case."""

_NAMED = re.compile(rf"({_NAME}{_QUOTE}\s*[:=]\s*{_QUOTE})({_VALUE})", re.IGNORECASE)
_OPTION = re.compile(
    rf"(--[\w.-]{{0,40}}{_NAME}(?:\s+|{_QUOTE}\s*,\s*{_QUOTE}))({_VALUE})", re.IGNORECASE
)
_NUMBER = re.compile(r"[\d.,/%]+")
_IN_ADDRESS = re.compile(r"(://)[^/\s:@\"']+:[^/\s@\"']+@")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|AKIA[A-Z0-9]{12,}|xox[abprs]-[A-Za-z0-9-]{10,}|glpat-[\w-]{16,}"
    r"|ey[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)

ALLOWED = re.compile(
    r"(?:RECOVERRUN|PET|NCCL|TORCH_NCCL|TORCH_FR|GLOO|OMP|MKL|KMP)_\w+"
    r"|TORCH_(?:DISTRIBUTED_DEBUG|SHOW_CPP_STACKTRACES|LOGS|CPP_LOG_LEVEL)"
    r"|(?:LOCAL_|GROUP_)?(?:RANK|WORLD_SIZE)|MASTER_(?:ADDR|PORT)|CUDA_VISIBLE_DEVICES"
    r"|CUDA_LAUNCH_BLOCKING|PYTORCH_CUDA_ALLOC_CONF|PYTHON(?:UNBUFFERED|FAULTHANDLER|HASHSEED)"
    r"|SLURM_(?:JOB_(?:ID|NAME|NUM_NODES|NODELIST|PARTITION|START_TIME|END_TIME)|NTASKS|NNODES"
    r"|PROCID|NODEID|LOCALID|RESTART_COUNT|CPUS_ON_NODE)"
    r"|LWS_(?:GROUP_SIZE|WORKER_INDEX)|JOB_COMPLETION_INDEX|LANG|LC_ALL|TERM|COLUMNS|NO_COLOR"
)
"""Names of variables that a report may hold, if they do not speak of a secret."""

_SECRET = re.compile(rf"{_WORDS}|key", re.IGNORECASE)


def masked(text: str) -> str:
    """`text` with what looks like a secret replaced."""
    clean = _SHAPES.sub(MASK, text)
    clean = _IN_ADDRESS.sub(rf"\1{MASK}@", clean)
    for pattern in (_OPTION, _NAMED):
        clean = pattern.sub(_without_value, clean)
    return clean


def _without_value(match: re.Match[str]) -> str:
    counted = "token" in match[1].lower() and _NUMBER.fullmatch(match[2])  # tokens: 2048
    return match[0] if counted else f"{match[1]}{MASK}"


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a report may hold."""
    return {
        name: masked(value)
        for name, value in sorted(environment.items())
        if ALLOWED.fullmatch(name) and not _SECRET.search(name)
    }
