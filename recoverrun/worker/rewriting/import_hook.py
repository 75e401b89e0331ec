"""An import hook that instruments the script's own modules as they are imported.

A finder at the front of `sys.meta_path` asks the other finders and returns the spec that they
found. If the spec is that of a project's source file with something to instrument, the finder gives
it another loader, which executes the rewritten code and touches no bytecode cache. If anything
fails here, the module is imported unchanged.
"""

import ast
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Never

from recoverrun.worker.analysis.call_graph import BackwardNames, identifiers_in
from recoverrun.worker.analysis.changed_names import changed_names
from recoverrun.worker.analysis.module_graph import imported_exports, imported_packages
from recoverrun.worker.analysis.project_findings import Findings
from recoverrun.worker.analysis.rank_conditions import may_ask_for_rank
from recoverrun.worker.analysis.syntax_trees import gc_paused
from recoverrun.worker.instrumentation import NO_CHANGES, RUNTIME_NAME, Runtime, TrainingHints
from recoverrun.worker.rewriting.loop_transformer import CannotInstrument, instrument
from recoverrun.worker.rewriting.packages_beside import scan
from recoverrun.worker.rewriting.post_import import find_after
from recoverrun.worker.rewriting.project import Project
from recoverrun.worker.rewriting.project_analysis import ProjectAnalysis

NO_HINTS = TrainingHints()

YIELDS = re.compile(rb"yield(?<!\wyield)\b")  # begins with a plain word: that is found fast


@dataclass(slots=True)
class Instrumenter:
    """Turns files of the project into instrumented code, and registers it with the runtime."""

    runtime: Runtime
    project: Project
    packages: Project  # installed ones that train
    analysis: ProjectAnalysis
    findings: Findings
    unknown: bool = False  # no loop of the project was found to train, though something does
    done: dict[tuple[str, bytes], CodeType | None] = field(default_factory=dict)

    @classmethod
    def for_project(
        cls, runtime: Runtime, project: Project, hints: TrainingHints = NO_HINTS
    ) -> "Instrumenter":
        """Scan the project for what leads to a backward."""
        found = scan(project, hints.packages)
        texts = found.sources.values()
        words = [word for word in hints.words if any(word in text for text in texts)]
        training = frozenset[str]().union(*(hints.words[word] for word in words))
        analysis = ProjectAnalysis(found, training, hints.packages)
        findings = analysis.findings()
        trained = {path for path, leads in findings.leading.items() if leads}
        own = not trained.isdisjoint(found.sources)
        unknown = found.holds_backward() and not own
        if unknown and hints.packages & imported_packages(texts):
            unknown = False  # these train by loops of their own
        return cls(
            runtime,
            found.project,
            found.trainers(trained),
            analysis,
            findings,
            unknown=unknown,
        )

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
        exports = imported_exports(data, self.findings.exports)
        asks = bool(exports) or YIELDS.search(data) is not None or may_ask_for_rank(data)
        if not leads and not asks:
            return None
        if self.analysis.is_unchanged(path, data, training):
            return None
        try:
            tree = ast.parse(data, path)
        except (SyntaxError, ValueError):
            return None  # Python itself reports the error, in its own words.
        except (RecursionError, MemoryError):
            self.runtime.refuse(path, f"{path} nests expressions too deeply to be instrumented")
            return None
        try:
            names, looped = self.findings.names, False
            if leads:
                names, looped = self._names_for(tree, path, data, training)
            code = None
            if asks or looped or self._is_unknown(path):
                named = replace(names.of(os.path.realpath(path)), unknown=self._is_unknown(path))
                rewritten = instrument(tree, path, named, data, exports)
                code = rewritten.code if rewritten.changed else None
        except CannotInstrument as problem:
            self.runtime.refuse(path, str(problem))
            return None
        except Exception as problem:
            # Protects the script from our mistakes: it runs as it is, and the mistake is known.
            self.runtime.refuse(path, f"{path} could not be instrumented: {problem!r}")
            return None
        if code is None:
            self.analysis.keep_unchanged(path, data, training)
            return None
        for loop in rewritten.loops:
            self.runtime.register(loop)
        self.runtime.hand_on(rewritten.rank0_blocks)
        return code

    def _is_unknown(self, path: str) -> bool:
        """True if any loop of a file that calls something may be the one that trains."""
        return self.unknown and not self.packages.contains(path)

    def _leads(self, path: str, data: bytes, training: frozenset[str]) -> bool:
        """True if loops of this file may lead to a backward, judged by the words in it."""
        if self._is_unknown(path):
            return True
        leads = self.findings.leading.get(os.path.realpath(path))
        if leads is not None:
            return leads
        return not identifiers_in(data).isdisjoint(self.findings.relevant_names | training)

    def _names_for(
        self, tree: ast.Module, path: str, data: bytes, training: frozenset[str]
    ) -> tuple[BackwardNames, bool]:
        """Return what leads to a backward, and True if loops of this file do."""
        findings, real = self.findings, os.path.realpath(path)
        if real not in findings.leading:
            findings = self.analysis.with_module(tree, path, data, training)
        return findings.names, findings.leading[real]


class Finder:
    """A meta path finder that gives modules of the project another loader."""

    def __init__(
        self,
        instrumenter: Instrumenter,
        trainers: Mapping[str, frozenset[str]],
    ) -> None:
        self._instrumenter = instrumenter
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
        own = self._instrumenter.project.contains(spec.origin)
        installed = not own and self._instrumenter.packages.contains(spec.origin)
        if not (own or installed or name in self._trainers):
            return spec
        try:
            data = spec.loader.get_data(spec.origin)
        except OSError:
            return spec  # Python itself reports it.
        changes = changed_names(data) if own else NO_CHANGES
        self._instrumenter.runtime.own(name, spec.origin, data, changes, installed=installed)
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
    sys.meta_path.insert(0, Finder(instrumenter, hints.modules))
    return instrumenter
