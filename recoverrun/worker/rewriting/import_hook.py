"""An import hook that instruments the script's own modules as they are imported.

A finder at the front of `sys.meta_path` asks the other finders and returns the spec that they
found. If the spec is that of a project's source file with something to instrument, the finder gives
it another loader, which executes the rewritten code and touches no bytecode cache. If anything
fails here, the module is imported unchanged.
"""

import ast
import functools
import itertools
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Never

from recoverrun.worker import own_files
from recoverrun.worker.analysis.call_facts import CallSites
from recoverrun.worker.analysis.call_graph import (
    BackwardNames,
    CallGraph,
    build_call_graph,
    identifiers_in,
)
from recoverrun.worker.analysis.changed_names import changed_names
from recoverrun.worker.analysis.module_graph import exports_of, importable_from, imported_exports
from recoverrun.worker.analysis.rank_conditions import NO_EXPORTS, RANK_WORDS, Exports
from recoverrun.worker.analysis.syntax_trees import gc_paused
from recoverrun.worker.instrumentation import NO_CHANGES, RUNTIME_NAME, Runtime, TrainingHints
from recoverrun.worker.rewriting.loop_transformer import CannotInstrument, instrument
from recoverrun.worker.rewriting.post_import import find_after

# Bounds of the search for modules of the project, so that a home directory costs little.
SCAN_DEPTH = 3
SCAN_FILES = 500
SCAN_FILE_BYTES = 1 << 20
SCAN_ENTRIES = 20_000  # of folders, whatever they are: data sets lie beside scripts, too

NO_CALLS: CallSites = (set(), set())
NO_HINTS = TrainingHints()

YIELDS = re.compile(rb"\byield\b")

INSTALLED = frozenset({"site-packages", "dist-packages"})
SKIPPED_FOLDERS = INSTALLED | {"__pycache__", "node_modules"}


@dataclass(frozen=True, slots=True)
class Project:
    """The folders whose modules are the script's own: beside the script, and the working one."""

    roots: tuple[str, ...]
    entry: str = ""  # the script's path, or the name of the module that is run

    @classmethod
    def of(cls, folders: Iterable[str], entry: str = "") -> "Project":
        """Return the project below `folders`, without those that hold all sorts of packages."""
        roots = dict.fromkeys(
            path for folder in folders for path in (os.path.abspath(folder), _real(folder))
        )
        return cls(tuple(root for root in roots if not _is_shared_folder(root)), entry)

    def contains(self, path: str) -> bool:
        """True if a file is the project's: not installed into it, not Python's, not ours."""
        if _is_in_stdlib(path) or own_files.has(path):
            return False
        return any(
            _below(path, root) and INSTALLED.isdisjoint(_parts(path, root)) for root in self.roots
        )

    def sources(self) -> Iterator[tuple[str, bytes]]:
        """Yield paths and contents of the project's files, within the bounds above."""
        seen: set[str] = set()
        for root in self.roots:
            for path in _python_files(root):
                if len(seen) == SCAN_FILES:
                    return
                real = _real(path)
                if real in seen or not self.contains(path):
                    continue
                seen.add(real)
                data = _small_file(path)
                if data is not None:
                    yield real, data


@dataclass(slots=True)
class Instrumenter:
    """Turns files of the project into instrumented code, and registers it with the runtime."""

    runtime: Runtime
    graph: CallGraph
    loop_calls: Mapping[str, CallSites]  # of the files that are in `graph`
    exports: Exports = field(default_factory=lambda: NO_EXPORTS)
    backward_names: BackwardNames = field(init=False)
    relevant_names: frozenset[str] = field(init=False)
    done: dict[tuple[str, bytes], CodeType | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backward_names, self.relevant_names = (
            self.graph.backward_names(),
            self.graph.relevant_names(),
        )

    @classmethod
    def for_project(
        cls, runtime: Runtime, project: Project, hints: TrainingHints = NO_HINTS
    ) -> "Instrumenter":
        """Scan the project for what leads to a backward."""
        sources = importable_from(dict(project.sources()), project.entry)
        texts = sources.values()
        words = [word for word in hints.words if any(word in text for text in texts)]
        training = frozenset[str]().union(*(hints.words[word] for word in words))
        with gc_paused():
            parse = functools.cache(parse_or_none)  # a file may matter to both
            graph, loop_calls = build_call_graph(sources.items(), parse, training)
            exports = exports_of(sources, parse)
        return cls(runtime, graph, loop_calls, exports)

    def code(
        self, path: str, data: bytes, training: frozenset[str] = frozenset()
    ) -> CodeType | None:
        """Return the instrumented code of a file, or None if it is to be run as it is.

        `training` are names in it that lead to a backward, though its source does not show it.
        """
        if (path, data) not in self.done:
            with gc_paused():
                self.done[path, data] = self._code(path, data, training)
        return self.done[path, data]

    def _code(self, path: str, data: bytes, training: frozenset[str]) -> CodeType | None:
        leads = self._leads(path, data, training)
        exports = imported_exports(data, self.exports)
        words = (YIELDS.search(data), RANK_WORDS.search(data))
        asks = bool(exports) or any(word is not None for word in words)
        if not leads and not asks:
            return None
        try:
            tree = ast.parse(data, path)
        except (SyntaxError, ValueError):
            return None  # Python itself reports the error, in its own words.
        except (RecursionError, MemoryError):
            self.runtime.refuse(path, f"{path} nests expressions too deeply to be instrumented")
            return None
        try:
            backward_names, loop_calls = (
                self._backward_names(tree, path, training)
                if leads
                else (self.backward_names, NO_CALLS)
            )
            if not asks and not backward_names.called_at(loop_calls):
                return None
            rewritten = instrument(tree, path, backward_names.of(_real(path)), data, exports)
            code = rewritten.code if rewritten.changed else None
        except CannotInstrument as problem:
            self.runtime.refuse(path, str(problem))
            return None
        except Exception as problem:
            # Protects the script from our mistakes: it runs as it is, and the mistake is known.
            self.runtime.refuse(path, f"{path} could not be instrumented: {problem!r}")
            return None
        for loop in rewritten.loops:
            self.runtime.register(loop)
        self.runtime.hand_on(rewritten.rank0_blocks)
        return code

    def _leads(self, path: str, data: bytes, training: frozenset[str]) -> bool:
        """True if loops of this file may lead to a backward, judged by the words in it."""
        loop_calls = self.loop_calls.get(_real(path))
        if loop_calls is not None:
            return self.backward_names.called_at(loop_calls)
        return not identifiers_in(data).isdisjoint(self.relevant_names | training)

    def _backward_names(
        self, tree: ast.Module, path: str, training: frozenset[str]
    ) -> tuple[BackwardNames, CallSites]:
        """Return what leads to a backward, and the call sites in loops of this file."""
        if (known := self.loop_calls.get(_real(path))) is not None:
            return self.backward_names, known
        graph = self.graph.extension()
        loop_calls = graph.add(tree, _real(path))
        graph.mark_training(training)
        return graph.backward_names(), loop_calls


class Finder:
    """A meta path finder that gives modules of the project another loader."""

    def __init__(
        self,
        instrumenter: Instrumenter,
        project: Project,
        trainers: Mapping[str, frozenset[str]],
    ) -> None:
        self._instrumenter = instrumenter
        self._project = project
        self._trainers = trainers
        self._pid = os.getpid()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the finders after this one find, possibly with another loader."""
        spec = find_after(self, name, path, target)
        if spec is None or spec.origin is None or os.getpid() != self._pid:
            return spec  # A process that the script forked is none of our business.
        if type(spec.loader) is not SourceFileLoader:
            return spec  # An extension, an archive, or someone else's hook.
        own = self._project.contains(spec.origin)
        if not own and name not in self._trainers:
            return spec
        try:
            data = spec.loader.get_data(spec.origin)
        except OSError:
            return spec  # Python itself reports it.
        changes = changed_names(data) if own else NO_CHANGES
        self._instrumenter.runtime.own(name, spec.origin, data, changes)
        training = self._trainers.get(name, frozenset())
        code = self._instrumenter.code(spec.origin, data, training)
        if code is not None:
            spec.loader = _Loader(spec.loader.name, spec.origin, code, self._instrumenter.runtime)
        return spec


class _Loader(SourceFileLoader):
    """Executes code that was compiled beforehand.

    It overrides only methods that leave no frame in a traceback: Python removes its own frames from
    the traceback of a failing import only if no other frame is among them.
    """

    def __init__(self, name: str, path: str, code: CodeType, runtime: Runtime) -> None:
        super().__init__(name, path)
        self._code = code
        self._runtime = runtime

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__dict__[RUNTIME_NAME] = self._runtime
        return module

    def path_stats(self, path: str) -> Never:
        """Raise an error, so that no bytecode is read or written."""
        raise OSError(f"{path} is instrumented: it is not cached")

    def source_to_code(  # type: ignore[override]
        self, *_args: object, **_options: object
    ) -> CodeType:
        return self._code


def install(runtime: Runtime, project: Project, hints: TrainingHints) -> Instrumenter:
    """Instrument what is imported from now on; return what does it, for the script itself."""
    instrumenter = Instrumenter.for_project(runtime, project, hints)
    sys.meta_path.insert(0, Finder(instrumenter, project, hints.modules))
    return instrumenter


def parse_or_none(path: str, data: bytes) -> ast.Module | None:
    """Parse a source file for its names, None if it has errors or nests too deeply for that."""
    try:
        return ast.parse(data, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _real(path: str) -> str:
    return os.path.realpath(path)


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _parts(path: str, folder: str) -> list[str]:
    return path[len(folder) :].split(os.sep)


def is_installed(path: str) -> bool:
    """True if a file belongs to Python or to a package that is installed beside it."""
    return _is_in_stdlib(path) or not INSTALLED.isdisjoint(path.split(os.sep))


def _is_in_stdlib(path: str) -> bool:
    """True if a path is in the standard library (in which packages may be installed)."""
    return any(
        path == folder or (_below(path, folder) and INSTALLED.isdisjoint(_parts(path, folder)))
        for folder in _stdlib_folders()
    )


@functools.cache
def _stdlib_folders() -> frozenset[str]:
    return frozenset(_real(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def _is_shared_folder(root: str) -> bool:
    """True if a folder is one of Python's own, in which packages of all origins are."""
    return os.path.basename(root) in INSTALLED or _is_in_stdlib(root)


def _python_files(root: str) -> Iterator[str]:
    """Yield files from the outer folders to the inner ones, so that the bounds cut the far ones."""
    level = [root]
    entries = 0
    for _ in range(SCAN_DEPTH + 1):
        inner: list[str] = []
        for folder in level:
            batch = list(itertools.islice(_entries(folder), SCAN_ENTRIES - entries))
            entries += len(batch)
            for entry in sorted(batch, key=lambda entry: entry.name):
                if entry.name.endswith(".py"):
                    yield entry.path
                elif entry.is_dir(follow_symlinks=False) and not _is_skipped(folder, entry.name):
                    inner.append(entry.path)
        level = inner


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        return  # It vanished, or is not ours to look into.


def _is_skipped(folder: str, name: str) -> bool:
    if name.startswith(".") or name in SKIPPED_FOLDERS:
        return True
    return os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))  # a virtual environment


def _small_file(path: str) -> bytes | None:
    try:
        if os.path.getsize(path) > SCAN_FILE_BYTES:
            return None
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None  # It vanished, or is not ours to read: no module of ours, then.
