"""Induction variables: names that a script's text only counts, of constants and of each other.

    step += 1
    epoch = step // 100                     # and in the header of `for turn in range(9)`

All ranks count alike. Most values that move between two steps are counted so, and to show it takes
the files that write them; where a loss goes takes all files of a project, seconds.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from recoverrun.worker.analysis.bare_names import assigned_names
from recoverrun.worker.analysis.syntax_trees import children, walk

NUMBERS = frozenset({"abs", "bool", "divmod", "float", "int", "max", "min", "range", "round"})
"""Functions of numbers alone."""

OTHERS = re.compile(rb"\b(?:def|class)\s+(?:%s)\b" % "|".join(sorted(NUMBERS)).encode())
"""Functions of the script that are called so."""

VALUES = (
    ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List,
)  # fmt: skip
"""Kinds of expressions that are as their parts are."""

WRITTEN = rb"\b%s\b(?!\s*\()|\b(?:def|class)\s+%s\b"
"""The places at which a file names something otherwise than to call it."""

MOST_FILES = 16
"""A name that more files hold is not followed."""


@dataclass(slots=True)
class _Writes:
    """The names that one file writes: expressions by bare name, and those written otherwise."""

    counted: dict[str, list[ast.expr]] = field(default_factory=dict)
    other: set[str] = field(default_factory=set)


class InductionVariables:
    """Those of these `sources` (by file name), of which `parsed` gives the syntax tree."""

    def __init__(
        self, sources: Mapping[str, bytes], parsed: Callable[[str], ast.Module | None]
    ) -> None:
        self._sources = sources
        self._parsed = parsed
        self._writes: dict[str, _Writes | None] = {}  # by file; None of one with errors
        self._known: dict[str, frozenset[str] | None] = {}

    def behind(self, name: str) -> frozenset[str] | None:
        """The names of which what is called `name` is counted, itself among them; None if it may
        come of anything else.
        """
        if name not in self._known:
            self._known[name] = self._found(name)
        return self._known[name]

    def _found(self, name: str) -> frozenset[str] | None:
        if any(OTHERS.search(source) for source in self._sources.values()):
            return None
        met, todo = {name}, [name]
        while todo:
            for value in self._values(todo.pop()):
                read = None if value is None else _read(value)
                if read is None:
                    return None
                todo += read - met
                met |= read
        return frozenset(met)

    def _values(self, name: str) -> Iterator[ast.expr | None]:
        """The values that a name is given, anywhere; None for what is no plain assignment."""
        word = re.compile(WRITTEN % ((re.escape(name.encode()),) * 2))
        files = [file for file, source in self._sources.items() if word.search(source)]
        if len(files) > MOST_FILES:
            yield None
            return
        for file in files:
            if file not in self._writes:
                tree = self._parsed(file)
                self._writes[file] = None if tree is None else _writes_in(tree)
            writes = self._writes[file]
            if writes is None or name in writes.other:
                yield None
            else:
                yield from writes.counted.get(name, ())


def _writes_in(tree: ast.Module) -> _Writes:
    """All that a file writes, each with the tests that decide whether it does."""
    found = _Writes()
    todo: list[tuple[ast.AST, tuple[ast.expr, ...]]] = [(tree, ())]
    while todo:
        node, tests = todo.pop()
        if isinstance(node, ast.If | ast.While):
            tests = (*tests, node.test)
        for target, value in _assigned(node):
            if value is None or not isinstance(target, ast.Name | ast.Attribute):
                found.other.update(assigned_names(target))
            else:
                name = target.id if isinstance(target, ast.Name) else target.attr
                found.counted.setdefault(name, []).extend((value, *tests))
        found.other.update(_bound_otherwise(node))
        todo += [(child, tests) for child in children(node)]
    return found


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The targets that a statement assigns to, each with what it is given, None if unknown."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _pairs(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.AugAssign(target=target, value=value, op=op):
            yield target, ast.BinOp(target, op, value)
        case ast.For(target=target, iter=header) | ast.AsyncFor(target=target, iter=header):
            yield from _turns(target, header)
        case ast.comprehension(target=target) | ast.withitem(optional_vars=ast.expr() as target):
            yield target, None
        case ast.Delete(targets=targets):
            yield from ((target, None) for target in targets)
        case _:
            pass


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    match target, value:
        case ((ast.Tuple() | ast.List()), (ast.Tuple() | ast.List())) if len(target.elts) == len(
            value.elts
        ):
            for part, one in zip(target.elts, value.elts, strict=True):
                yield from _pairs(part, one)
        case ((ast.Name() | ast.Attribute()), _):
            yield target, value
        case _:
            yield target, None


def _turns(target: ast.expr, header: ast.expr) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The same of the header of a loop: `enumerate` counts, whatever it goes over."""
    match target, header:
        case ast.Tuple(elts=[number, data]), ast.Call(func=ast.Name("enumerate"), args=[over]):
            yield number, ast.Constant(0)
            yield from _turns(data, over)
        case _, ast.Call(func=ast.Name("range")):
            yield target, header
        case _:
            yield target, None


def _bound_otherwise(node: ast.AST) -> Iterator[str]:
    """Names of parameters, functions and the like, and of what a method may change."""
    match node:
        case ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str() as name):
            yield name
        case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
            yield name
        case ast.MatchMapping(rest=str() as name):
            yield name
        case ast.Call(func=ast.Attribute(value=owner)):
            yield from assigned_names(owner)
        case _:
            pass


def _read(value: ast.expr) -> set[str] | None:
    """The names that a value is counted of, None if it does more than to count."""
    names = set[str]()
    for node in walk(value):
        match node:
            case ast.Name(id=name):
                names.add(name)
            case ast.Attribute(value=ast.Name("self"), attr=name):
                names.add(name)
            case ast.Call(func=ast.Name(id=name)) if name in NUMBERS:
                pass
            case _ if not isinstance(node, VALUES):
                return None
    return names - NUMBERS - {"self"}
