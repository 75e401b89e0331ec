"""The values of torchrun's options: each from text to a type, or one sentence.

Every function raises RecoverrunError with exit code 2 for what cannot be meant.
"""

import os
import re
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from recoverrun.errors import RecoverrunError
from rendezvous.consensus.register_events import OnSilence
from rendezvous.membership.formation import NPROC_MOST
from rendezvous.membership.hang_events import OnHang
from rendezvous.protocol.exit_codes import ExitCode

SHUTDOWN_S = 30
"""torchrun's patience with a worker that was told to end, in seconds."""

C10D_PORT = 29400
STATIC_PORT = 29500
WITNESS_PORT = 29410
ETCD_PORT = 2379
JOIN_TIMEOUT_S = 600.0
LAST_CALL_S = 30.0
WEEK_S = 7 * 86400.0

NODES_MOST = 10_000

KNOWN_KEYS = frozenset({
    "join_timeout", "timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout",
    "keep_alive_interval", "keep_alive_max_attempt", "read_timeout", "is_host", "store_type",
    "rank", "use_libuv", "protocol", "ssl_cert", "ssl_cert_key", "ca_cert", "cacert", "cert",
    "key", "etcd_prefix",
})  # fmt: skip
"""Keys of torchrun's backends; those that we do not use describe machinery that we do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address at which the launchers of a job meet."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardStreams:
    """Bits for stdout (1) and stderr (2), for all local ranks or for each."""

    every: int = 0
    by_rank: tuple[tuple[int, int], ...] = ()

    @property
    def asked(self) -> bool:
        return bool(self.every or any(bits for _, bits in self.by_rank))

    def of(self, local_rank: int) -> int:
        return dict(self.by_rank).get(local_rank, self.every)


@dataclass(frozen=True, slots=True, kw_only=True)
class RdzvConf:
    """The used keys of --rdzv-conf, and the unknown ones."""

    join_timeout_s: float = JOIN_TIMEOUT_S
    last_call_s: float = LAST_CALL_S
    is_host: bool | None = None
    unknown: tuple[str, ...] = ()


def usage(sentence: str) -> RecoverrunError:
    return RecoverrunError(sentence, ExitCode.USAGE)


def _integer(text: str) -> int | None:
    """The integer as int() reads it: with blanks around, with a sign."""
    try:
        return int(text) if len(text) < 20 else None
    except ValueError:
        return None


def nnodes(text: str) -> tuple[int, int]:
    """N, or MIN:MAX."""
    numbers = [_integer(part) for part in text.split(":")]
    least, most = numbers[0], numbers[-1]
    if len(numbers) > 2 or least is None or most is None:
        raise usage(f"--nnodes must be a number like 2, or a range like 2:4, not {text!r}")
    if not 1 <= least <= most <= NODES_MOST:
        raise usage(f"--nnodes must be at least 1, and MIN at most MAX, not {text}")
    return least, most


def nproc(text: str, environ: Mapping[str, str]) -> int:
    """Workers of this node: a number, or as many as there are devices; "auto": GPUs or CPUs."""
    number = _integer(text)
    if number is not None:
        if not 1 <= number <= NPROC_MOST:
            raise usage(f"--nproc-per-node must be between 1 and {NPROC_MOST}, not {text}")
        return number
    cpus = len(os.sched_getaffinity(0))
    if text == "cpu":
        return cpus
    if text not in ("auto", "gpu", "xpu"):
        raise usage(f"--nproc-per-node must be a number, auto, cpu, gpu or xpu, not {text!r}")
    found = {"gpu": gpus, "xpu": xpus, "auto": _accelerators}[text](environ)
    if text != "auto" and not found:
        raise usage(f"--nproc-per-node {text}: this node has no {text.upper()}")
    return found or cpus


def _accelerators(environ: Mapping[str, str]) -> int:
    return gpus(environ) or xpus(environ)


def gpus(environ: Mapping[str, str]) -> int:
    """The number of GPUs that CUDA or ROCm would show, found without loading either."""
    nvidia = sum(1 for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit())
    present = nvidia or _kfd_gpus()
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if name in environ and (name.startswith("CUDA") or not nvidia):
            present = min(present, _chosen(environ[name]))
    return present


def _kfd_gpus() -> int:
    """AMD's driver lists CPUs and GPUs as nodes; only the latter have SIMD units."""
    nodes = Path("/sys/class/kfd/kfd/topology/nodes")
    count = 0
    for properties in nodes.glob("*/properties"):
        try:
            text = properties.read_text()
        except OSError:
            continue
        match = re.search(r"^simd_count (\d+)$", text, re.MULTILINE)
        count += match is not None and int(match[1]) > 0
    return count


def xpus(environ: Mapping[str, str]) -> int:
    """The number of Intel's GPUs that Level Zero would show, found without loading it."""
    cards = Path("/sys/class/drm").glob("card[0-9]*/device/driver")
    found = {path.parent.resolve() for path in cards if path.resolve().name in ("i915", "xe")}
    mask = environ.get("ZE_AFFINITY_MASK")
    return len(found) if mask is None else min(len(found), _chosen(mask))


def _chosen(devices: str) -> int:
    return len([part for part in devices.split(",") if part.strip() not in ("", "-1")])


def is_static(backend: str) -> bool:
    if backend.startswith("etcd"):
        raise usage(
            f"--rdzv-backend {backend}: recoverrun needs no etcd; give --rdzv-endpoint an address "
            f"of one of the nodes, and leave the backend out"
        )
    return one_of("--rdzv-backend", backend, ("static", "c10d")) == "static"


def on_silence(text: str) -> OnSilence:
    """The reaction of a launcher that hears no other any more."""
    return "continue" if one_of("--on-partition", text, ("stop", "continue")) != "stop" else "stop"


def on_hang(text: str) -> OnHang:
    """The reaction to a rank that hangs."""
    known: dict[str, OnHang] = {"recover": "recover", "tell": "tell", "off": "off"}
    return known[one_of("--on-hang", text, known)]


def snapshot_every(text: str, protects: bool) -> str:
    """Steps from one snapshot to the next, "auto", or "0" for none, as without protection."""
    if text != "auto" and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise usage(f"--snapshot-every must be a number of steps, auto or 0, not {text!r}")
    return text.lstrip("0") or "0" if protects else "0"


def snapshot_parity(nodes: int) -> int:
    """Nodes of a group whose loss snapshots survive."""
    if nodes not in (0, 1, 2):
        raise usage(f"--snapshot-parity must be 0, 1 or 2, not {nodes}")
    return nodes


def patience(given: float | None, environ: Mapping[str, str]) -> float:
    """Seconds between the first signal to the workers and SIGKILL."""
    if given is not None:
        return float(given)
    name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    text = environ.get(name) or str(SHUTDOWN_S)
    if not (text.isascii() and text.isdigit()):
        raise usage(f"{name} must be seconds, not {text!r}")
    return float(text)


def one_of(option: str, text: str, values: Collection[str]) -> str:
    if text not in values:
        raise usage(f"{option} must be one of {', '.join(sorted(values))}, not {text!r}")
    return text


def endpoints(text: str, default_port: int) -> tuple[Endpoint, ...]:
    """One or several, separated by commas."""
    return tuple(dict.fromkeys(endpoint(part.strip(), default_port) for part in text.split(",")))


def endpoint(text: str, default_port: int, option: str = "--rdzv-endpoint") -> Endpoint:
    """host, host:port, [v6], [v6]:port."""
    if text.count(":") > 1 and "[" not in text:
        raise usage(f"{option}: an IPv6 address needs brackets, [{text}] or [{text}]:PORT")
    match = re.fullmatch(r"(\[[\w:.]+(?:%[\w.-]+)?\]|[^:\[\]\s]+)(?::([0-9]+))?", text)
    if match is None:
        raise usage(f"{option} must be host:port, not {text!r}")
    number = port(int(match[2]) if match[2] else default_port, option)
    if number == 0:
        raise usage(f"{option}: port 0 means any, and the other nodes cannot know which")
    return Endpoint(host=match[1].strip("[]"), port=number)


def metrics_place(text: str, option: str) -> Endpoint:
    """PORT of the loopback address, or HOST:PORT, where * is every address."""
    if not re.search(r"(^|:)[0-9]+$", text):
        raise usage(f"{option} must be PORT or HOST:PORT, not {text!r}")
    found = endpoint(f"127.0.0.1:{text}" if text.isdigit() else text, 0, option)
    return Endpoint(host="0.0.0.0", port=found.port) if found.host == "*" else found


def witness(text: str) -> Endpoint | Path | None:
    """The witness: HOST:PORT of a process, or a directory; None if there is none."""
    if not text:
        return None
    if not text.startswith("file:"):
        return endpoint(text, WITNESS_PORT, "--witness")
    path = text.removeprefix("file://")
    if not path.startswith("/"):
        raise usage(f"--witness must be HOST:PORT or file:///DIRECTORY, not {text!r}")
    return Path(path)


def coord(text: str) -> tuple[Endpoint, ...]:
    """etcd://HOST:PORT,...; empty for the launchers' own register."""
    if not text:
        return ()
    scheme, found, places = text.partition("://")
    if scheme != "etcd" or not found or not places.strip("/"):
        raise usage(f"--etcd must be etcd://HOST:PORT,HOST:PORT, not {text!r}")
    parts = places.rstrip("/").split(",")
    return tuple(dict.fromkeys(endpoint(part.strip(), ETCD_PORT, "--etcd") for part in parts))


def port(number: int, option: str) -> int:
    if not 0 <= number <= 65535:
        raise usage(f"{option}: there is no port {number}")
    return number


def rdzv_conf(text: str) -> RdzvConf:
    """`key=value,...`, also in the quotes that some scripts pass on."""
    pairs: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.strip("'\"").split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not value:
            raise usage(f"--rdzv-conf must be key=value,key=value, not {text!r}")
        pairs[key.strip()] = value.strip()
    join = pairs.get("join_timeout") or pairs.get("timeout")
    host = pairs.get("is_host")
    return RdzvConf(
        join_timeout_s=JOIN_TIMEOUT_S if join is None else _seconds("join_timeout", join),
        last_call_s=_seconds("last_call_timeout", pairs.get("last_call_timeout", "30")),
        is_host=None if host is None else host.lower() in ("1", "true", "t", "yes", "y"),
        unknown=tuple(sorted(pairs.keys() - KNOWN_KEYS)),
    )


def _seconds(key: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise usage(f"--rdzv-conf {key} must be seconds, not {text!r}") from None
    if not 0 < seconds <= WEEK_S:
        raise usage(f"--rdzv-conf {key} must be positive, not {text}")
    return seconds


def streams(option: str, text: str) -> StandardStreams:
    """0 to 3, or RANK:N,... with ranks that are not named at 0."""
    if re.fullmatch(r"[0-3]", text):
        return StandardStreams(every=int(text))
    if not re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        raise usage(
            f"{option} must be 0 to 3 or RANK:N,RANK:N (1 out, 2 err, 3 both), not {text!r}"
        )
    pairs = [pair.split(":") for pair in text.split(",")]
    return StandardStreams(by_rank=tuple((int(rank), int(bits)) for rank, bits in pairs))


def rank_set(option: str, text: str) -> frozenset[int]:
    if not text:
        return frozenset()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise usage(f"{option} must be numbers like 0,1,2, not {text!r}")
    return frozenset(int(part) for part in parts)


def words(text: str) -> tuple[str, ...]:
    """A list with commas; two of them are one in a word."""
    marked = text.replace(",,", "\0")
    return tuple(part.replace("\0", ",").strip() for part in marked.split(",") if part.strip())


def signals(text: str) -> tuple[tuple[signal.Signals, ...], tuple[str, ...]]:
    """The signals, and names that this system does not know."""
    found, unknown = [], []
    for name in filter(None, (part.strip() for part in text.split(","))):
        number = getattr(signal, name.upper(), None)
        if not isinstance(number, signal.Signals):
            unknown.append(name)
        elif number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            raise usage(f"--signals-to-handle: {name} cannot be handled")
        else:
            found.append(number)
    return tuple(dict.fromkeys(found)), tuple(unknown)
