"""Runs a script exactly as `python -u SCRIPT` or `python -u -m MODULE` would.

Theory of operation: the interpreter was started with `-m recoverrun.worker`, so that what it set up
(`__main__`, sys.argv, sys.path[0], sys.orig_argv) is ours, and is replaced by the script's before
its first line. Modules and folders are then run by the very function that Python uses for them
(`runpy._run_module_as_main`); a script file is compiled and executed here, as there is no function
of Python's that would let us change its syntax tree. What cannot be had: our frames stay below the
script's own, where only `sys._getframe` and `traceback.print_stack` see them.
"""

import atexit
import importlib.util
import os
import pkgutil
import runpy
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType
from typing import Literal

from recoverrun.worker.analysis.changed_names import changed_names
from recoverrun.worker.boot import tracebacks
from recoverrun.worker.error_file import file_age, write_error_file
from recoverrun.worker.instrumentation import RUNTIME_NAME, Started
from recoverrun.worker.rewriting.import_hook import Instrumenter, install
from recoverrun.worker.rewriting.project import Project
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.process_title import entitle
from rendezvous.protocol.shared_memory import error_beside
from rendezvous.protocol.worker_env import ENDPOINT

USAGE = "usage: python -u -m recoverrun.worker [-m] SCRIPT [ARGUMENT ...]"


@dataclass(frozen=True, slots=True)
class Target:
    """The program to run: a script file, a module, or a folder or archive with a `__main__`."""

    kind: Literal["script", "module", "container"]
    name: str  # as given on the command line
    arguments: tuple[str, ...]

    @property
    def path(self) -> str:
        """The absolute path, spelled as Python spells it: the given one behind the folder."""
        if os.path.isabs(self.name):
            return self.name
        return f"{os.getcwd().rstrip(os.sep)}{os.sep}{self.name}"

    @property
    def first_path(self) -> str:
        """The entry that Python puts at the front of sys.path."""
        match self.kind:
            case "script":
                return os.path.dirname(os.path.realpath(self.path))
            case "module":
                return os.getcwd()
            case "container":
                return self.path


@dataclass(slots=True)
class _Interruption:
    """An uncaught KeyboardInterrupt ends the process by SIGINT, after everything else."""

    happened: bool = False

    def die(self) -> None:
        if not self.happened:
            return
        flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def flush() -> None:
    """Write out what the script has printed, as the interpreter does at its end (flush_std_files).

    A script may have put an object of its own there, which knows no more than `write` and `flush`.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


def main(
    arguments: Sequence[str],
    *,
    start: Callable[[Mapping[str, str]], Started],
    implied_path: str | None,
) -> None:
    """Run the target named by `arguments`, and end as it ends: by SystemExit or by returning.

    `implied_path` is the last entry of sys.path that came from how we were started, None if none.
    """
    target = _parse(arguments)
    if os.environ.get(ENDPOINT):
        entitle(f"r{os.environ.get('RANK', '')}", target.name)
    interruption = _Interruption()
    atexit.register(interruption.die)  # The first to be registered is the last to be called.
    started = start(os.environ)
    _set_up_sys(target, implied_path)
    main_module = _main_module()
    instrumenter = _instrument_imports(target, started)
    _supervise(target, main_module, instrumenter, started, interruption)


def _parse(arguments: Sequence[str]) -> Target:
    match list(arguments):
        case ["-m", module, *rest]:
            return Target("module", module, tuple(rest))
        case [script, *rest] if not script.startswith("-"):
            # As Python does: look for a path hook that can import from it.
            kind: Literal["script", "container"] = (
                "container" if pkgutil.get_importer(script) is not None else "script"
            )
            return Target(kind, script, tuple(rest))
        case _:
            print(USAGE, file=sys.stderr)
            sys.exit(ExitCode.USAGE)


def _set_up_sys(target: Target, implied_path: str | None) -> None:
    """Make sys look as it would have looked to the script."""
    if implied_path is not None:
        last = len(sys.path) - 1 - sys.path[::-1].index(implied_path)
        del sys.path[last]
    if target.kind == "container" or not sys.flags.safe_path:
        sys.path.insert(0, target.first_path)
    is_module = target.kind == "module"
    # While the packages around a module are imported, the path of the module is not yet known.
    sys.argv[:] = ["-m" if is_module else target.name, *target.arguments]
    switch = ["-m"] if is_module else []
    sys.orig_argv[:] = [sys.orig_argv[0], "-u", *switch, target.name, *target.arguments]


def _main_module() -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__["__annotations__"] = {}
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    return module


def _instrument_imports(target: Target, started: Started) -> Instrumenter | None:
    if started.runtime is None:
        return None
    folders = [target.first_path, os.getcwd()]
    if target.kind == "module":
        folders = [*_package_folders(target.name), os.getcwd()]
    elif target.kind == "container" and not os.path.isdir(target.path):
        started.runtime.refuse(target.path, f"{target.path} is an archive: it runs as it is")
    entry = target.name if target.kind == "module" else os.path.realpath(target.name)
    if target.kind == "container":
        entry = "__main__"
    return install(started.runtime, Project.of(folders, entry), started.hints)


def _package_folders(module: str) -> list[str]:
    """Return where the package around a module lies, without importing it."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return []  # Python will say so in a moment.
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return list(spec.submodule_search_locations)
    return [os.path.dirname(spec.origin)] if spec.has_location and spec.origin else []


def _supervise(
    target: Target,
    main_module: ModuleType,
    instrumenter: Instrumenter | None,
    started: Started,
    interruption: _Interruption,
) -> None:
    pid = os.getpid()
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    instead = error_beside(os.environ.get("RECOVERRUN_CONTEXT", ""))
    age = file_age(error_file)
    ending: SystemExit | None = None
    try:
        _run(target, main_module, instrumenter)
    except SystemExit as request:
        if os.getpid() == pid and _has_words(request):
            # Not in the script's error file: torch writes none for it either.
            tracebacks.hide_our_frames(request)
            write_error_file("", request, instead)
        ending = _said(request)
    except BaseException as error:
        # Whatever the script raises is the script's: it is reported, and shown as Python shows it.
        tracebacks.hide_our_frames(error)
        if os.getpid() == pid:
            started.failing(error)
        # The script may have left a report of its own (`torch`'s @record): that one stands.
        if os.getpid() == pid and error_file and file_age(error_file) == age:
            write_error_file(error_file, error, instead)
        ending = tracebacks.show(error)
        interruption.happened = isinstance(error, KeyboardInterrupt)
    if os.getpid() == pid:  # and not in a process that the script forked
        started.finish(ExitCode.INTERRUPTED if interruption.happened else exit_code(ending))
    if ending is not None:
        raise ending


def _has_words(request: SystemExit) -> bool:
    """True if it carries a message, which is why the script ends."""
    return not (request.code is None or isinstance(request.code, int))


def _said(request: SystemExit) -> SystemExit:
    """Print the message that a SystemExit may carry, as the interpreter does, and drop it.

    Said now, as `finish` may end the process by itself.
    """
    if not _has_words(request):
        return request
    print(request.code, file=sys.stderr)
    return SystemExit(1)


def exit_code(ending: SystemExit | None) -> int:
    """Return the exit status that the interpreter makes of the script's end, 0 to 255."""
    match ending.code if ending is not None else None:
        case None:
            return 0
        case int(number):
            return number & 0xFF if -(2**63) <= number < 2**63 else 0xFF
        case _:
            return 1  # a message, which the interpreter prints


def _run(target: Target, main_module: ModuleType, instrumenter: Instrumenter | None) -> None:
    if target.kind == "script":
        _run_file(target.path, main_module, instrumenter)
    else:
        # Private, but what `python -m` itself calls: same messages, same frames in tracebacks.
        is_module = target.kind == "module"
        name = target.name if is_module else "__main__"
        if instrumenter is not None:  # Only `runpy` will know whether its code needs it.
            main_module.__dict__[RUNTIME_NAME] = instrumenter.runtime
        runpy._run_module_as_main(name, is_module)  # type: ignore[attr-defined]


def _run_file(path: str, main_module: ModuleType, instrumenter: Instrumenter | None) -> None:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as problem:
        reason = f"[Errno {problem.errno}] {problem.strerror}"
        print(f"{sys.orig_argv[0]}: can't open file {path!r}: {reason}", file=sys.stderr)
        sys.exit(ExitCode.USAGE)  # as Python's own
    is_bytecode = data[:4] == importlib.util.MAGIC_NUMBER
    loader = (SourcelessFileLoader if is_bytecode else SourceFileLoader)("__main__", path)
    main_module.__dict__.update(__loader__=loader, __file__=path, __cached__=None)
    code: CodeType | None = None
    if isinstance(loader, SourcelessFileLoader):
        code = loader.get_code("__main__")
        if instrumenter is not None:
            instrumenter.runtime.refuse(path, f"{path} is compiled: it runs as it is")
    elif instrumenter is not None:
        instrumenter.runtime.own("__main__", path, data, changed_names(data))
        code = instrumenter.code(path, data)
        if code is not None:
            main_module.__dict__[RUNTIME_NAME] = instrumenter.runtime
    if code is None:
        code = compile(data, path, "exec", dont_inherit=True)
    exec(code, main_module.__dict__)
