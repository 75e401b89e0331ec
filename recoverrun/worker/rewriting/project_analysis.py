"""The analysis of a project's files as a whole, found anew or kept from an earlier run.

Hundreds of files take seconds, in each rank. An answer that is kept takes some hundredths: the
files are read and their digest is taken, but none is parsed. The call graph behind the answer is
built only where a file asks for it that is not among them, and is not known from an earlier run.
"""

import ast
import functools
import os
from collections.abc import Iterable, Iterator

from recoverrun.worker.analysis.call_graph import CallGraph, build_call_graph
from recoverrun.worker.analysis.module_graph import exports_of
from recoverrun.worker.analysis.project_findings import Findings
from recoverrun.worker.analysis.syntax_trees import gc_paused
from recoverrun.worker.rewriting.kept_answers import KeptAnswers, cache_folder
from recoverrun.worker.rewriting.packages_beside import Scan

WORTH_KEEPING_BYTES = 1 << 18
"""Sources that take some 0.2 s of CPU time."""

PROJECT, MODULE, UNCHANGED = b"project", b"module", b"unchanged"
"""Questions that are asked."""


class ProjectAnalysis:
    """Finds what a project's files say, and more files together with them."""

    def __init__(self, found: Scan, training: frozenset[str], packages: Iterable[str]) -> None:
        """`training` are names that lead to a backward outside of these files, and `packages` train
        by loops of their own.
        """
        self._found = found
        self._training = training
        self._graph: CallGraph | None = None
        worth = sum(map(len, found.sources.values())) >= WORTH_KEEPING_BYTES or found.installed
        folder = cache_folder(os.environ) if worth else None
        self._answers = KeptAnswers(folder, _subject(found, training, packages))

    def findings(self) -> Findings:
        """Return what all files together say."""
        known = _unpacked(self._answers.get(PROJECT))
        if known is None:
            known = self._analysed()
            self._answers.put(known.packed(), PROJECT)
        return known

    def with_module(
        self, tree: ast.Module, path: str, data: bytes, training: frozenset[str]
    ) -> Findings:
        """Return what all files say together with one that is not among them.

        `training` are names in it that lead to a backward.
        """
        question = MODULE, *_question(path, data, training)
        known = _unpacked(self._answers.get(*question))
        if known is None:
            if self._graph is None:
                self._analysed()
            assert self._graph is not None, "an analysis makes the graph"
            real = os.path.realpath(path)
            graph = self._graph.extension()
            loop_calls = graph.add(tree, real)
            graph.mark_training(training)
            names = graph.backward_names()
            known = Findings(names=names, leading={real: names.called_at(loop_calls)})
            self._answers.put(known.packed(), *question)
        return known

    def is_unchanged(self, path: str, data: bytes, training: frozenset[str]) -> bool:
        """True if it is known that nothing in this file is to be rewritten."""
        return self._answers.get(UNCHANGED, *_question(path, data, training)) is True

    def keep_unchanged(self, path: str, data: bytes, training: frozenset[str]) -> None:
        """Keep that nothing in this file is to be rewritten."""
        self._answers.put(True, UNCHANGED, *_question(path, data, training))

    def _analysed(self) -> Findings:
        found = self._found
        with gc_paused():
            parse = functools.cache(parse_or_none)  # a file may matter to several of these
            exports = exports_of(found.sources, parse)
            for whole in (False, True):
                files = found.files(whole=whole)
                graph, loop_calls = build_call_graph(files.items(), parse, self._training)
                names = graph.backward_names()
                leading = {path: names.called_at(calls) for path, calls in loop_calls.items()}
                if any(leads and path in found.sources for path, leads in leading.items()):
                    break
                if not found.installed:
                    break  # else the loop may be in a package, too
        self._graph = graph
        return Findings(
            names=names, relevant_names=graph.relevant_names(), leading=leading, exports=exports
        )


def parse_or_none(path: str, data: bytes) -> ast.Module | None:
    """Parse a source file for its names, None if it has errors or nests too deeply for that."""
    try:
        return ast.parse(data, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _unpacked(plain: object) -> Findings | None:
    if plain is None:
        return None
    try:
        return Findings.unpacked(plain)
    except (LookupError, TypeError, ValueError):
        return None


def _subject(found: Scan, training: frozenset[str], packages: Iterable[str]) -> Iterator[bytes]:
    """Yield all that answers depend on, each part behind its number where there may be any."""
    for files in (found.sources, *found.installed.values()):
        yield str(len(files)).encode()
        for path, text in files.items():
            yield _bytes(path)
            yield text
    for names in (found.installed, sorted(training), sorted(packages)):
        yield str(len(names)).encode()
        yield from map(_bytes, names)


def _question(path: str, data: bytes, training: frozenset[str]) -> list[bytes]:
    real = os.path.realpath(path)
    return [_bytes(path), _bytes(real), data, *map(_bytes, sorted(training))]


def _bytes(text: str) -> bytes:
    """Return the bytes of a name; a file's may hold what is no text."""
    return text.encode(errors="surrogatepass")
