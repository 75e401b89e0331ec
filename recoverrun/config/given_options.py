"""The options of a run as they are given, before anything is concluded from them."""

from dataclasses import dataclass
from pathlib import Path

STANDARD_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line as given, before anything is concluded from it."""

    command: tuple[str, ...]  # the script and its arguments
    module: bool = False
    no_python: bool = False
    run_path: bool = False
    nnodes: str = "1"
    node_rank: int | None = None
    nproc_per_node: str = "1"
    standalone: bool = False
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_id: str = "none"
    rdzv_conf: str = ""
    master_addr: str = ""
    master_port: int | None = None
    local_addr: str = ""
    key_file: str = ""
    key_required: bool = False
    allow_mixed: bool = False
    max_restarts: int = 0
    min_replicas: int = 1
    on_silence: str = "stop"
    on_hang: str = "recover"
    hang_limit: float = 0.0
    returns: bool = True
    spares: int = 0
    snapshot_every: str = ""
    snapshot_parity: int = 1
    snapshot_dir: Path | None = None
    snapshot_resume: str = "auto"
    snapshot_memory: str = "40%"
    witness: str = ""
    coord: str = ""
    run_dir: Path | None = None
    log_dir: Path | None = None
    redirects: str = "0"
    tee: str = "0"
    log_line_prefix_template: str = ""
    local_ranks_filter: str = ""
    ranks_filter: str = ""
    duplicate_stdout_filters: str = ""
    duplicate_stderr_filters: str = ""
    role: str = "default"
    virtual_local_rank: bool = False
    numa_binding: str = ""
    signals_to_handle: str = STANDARD_SIGNALS
    shutdown_timeout: int | None = None
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    event_log_handler: str = "null"
    logs_specs: str = ""
    no_protect: bool = False
    exact: bool = False
    check_finite: bool = False
    dry_run: bool = False
    inject: str = ""
    finals: str = ""
    digest_every: int = 0
    metrics_port: str = ""
    on_event: str = ""
    notify_url: str = ""
    otlp: str = ""
