"""Names that come of what each rank computes for itself, by the script's text.

    if loss.item() < 0.1:
        level += 1                          # in the loop, behind the backward

    weights = balanced(costs)               # as an epoch begins

As long as all ranks have moved such a value alike, no comparison of values shows whose it is; the
text does. What a collective has gone over is the same on all ranks.
"""

import ast
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress

from recoverrun.worker.analysis.bare_names import BACKWARD, assigned_names, name_of
from recoverrun.worker.analysis.induction_variables import InductionVariables
from recoverrun.worker.analysis.program_text import Assignment, ProgramText
from recoverrun.worker.analysis.pure_statements import FUNCTIONS, METHODS
from recoverrun.worker.analysis.rank_flow import (
    ATTRIBUTE,
    MOST_FUNCTIONS,
    RESULT,
    Function,
    Name,
    called_so,
    scoped,
)
from recoverrun.worker.analysis.syntax_trees import children, gc_paused, walk

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of packages, whose own bookkeeping is not the script's."""

FUNCTION = re.compile(rb"^\s*(?:async\s+)?def\b", re.MULTILINE)

TOGETHER = ("reduce", "gather", "broadcast")
"""A function with such a word in its name gives the same on all ranks."""

LOOP = (ast.For, ast.AsyncFor, ast.While)

OBJECTS = frozenset({"self", "cls"})
"""Of these a method reads and writes attributes, each by itself."""

SHAPES = frozenset(
    {
        "device", "dim", "dtype", "isfinite", "isinf", "isinstance", "isnan", "len", "ndim",
        "numel", "shape", "size", "type",
    }
)  # fmt: skip
"""Of what is called so, ranks have mostly the same: shapes, and that a number is finite."""


class OwnResults:
    """The names in these `sources` (by file name) that come of a loss, of what a loop computes on
    the way to one, or of what is known to differ. `parsed` gives the syntax tree of a file.

    What the text only counts (`induction_variables`) needs no more than the files that write it.
    Of others all files are read, once: some 0.1 s for 1,000 lines.
    """

    def __init__(
        self, sources: Mapping[str, bytes], parsed: Callable[[str], ast.Module | None]
    ) -> None:
        own = {
            name: source
            for name, source in sources.items()
            if INSTALLED.isdisjoint(name.split(os.sep))
        }
        self._sources, self._parsed = own, parsed
        self._counted = InductionVariables(own, parsed)
        self._flow: _OwnFlow | None = None

    def holds(self, name: str, entry: str, differing: frozenset[str]) -> bool:
        """True if something that is called so, or this entry of it (`['mean']`), comes of them, or
        of one of `differing`.
        """
        counted = self._counted.behind(name)
        if counted is not None and counted.isdisjoint(one.partition("[")[0] for one in differing):
            return False
        if self._flow is None:
            number = sum(len(FUNCTION.findall(source)) for source in self._sources.values())
            few = number <= MOST_FUNCTIONS  # of more it would take seconds
            with gc_paused():
                trees = {name: self._parsed(name) for name in self._sources} if few else {}
                parsed = {name: tree for name, tree in trees.items() if tree is not None}
                self._flow = _OwnFlow(parsed)
        found = self._flow.from_also(differing)
        return name in found or name + entry in found


class _OwnFlow:
    """The flow of them, by names, through all modules."""

    def __init__(self, modules: Mapping[str, ast.Module]) -> None:
        self._headers = set[int]()  # identities of what loops go over
        self._together = set[Name]()
        self._computed = set[Name]()  # by more than a factor
        self._readers: dict[Name, list[Assignment]] = {}
        self._begun = set[Name]()
        self._found: dict[frozenset[str], frozenset[str]] = {}
        self._text = ProgramText({}, [])
        with suppress(RecursionError):  # an expression of hundreds of levels: nothing is said
            self._text = ProgramText(modules, [])
            self._read_all(modules)

    def from_also(self, differing: frozenset[str]) -> frozenset[str]:
        """The bare names of what comes of results of this rank, or of what is called so."""
        if differing not in self._found:
            begun = set(self._begun)
            for whole, _, entry in (name.partition("[") for name in differing):
                known = called_so(self._text.project, self._text.functions.values(), [whole])
                begun |= {(owner, f"{name}[{entry}" if entry else name) for owner, name in known}
            self._found[differing] = frozenset(name for _, name in self._followed(begun))
        return self._found[differing]

    def _read_all(self, modules: Mapping[str, ast.Module]) -> None:
        nodes = [one for tree in modules.values() for one in scoped(tree)]
        self._headers = {
            id(one.iter) for _, one in nodes if isinstance(one, ast.For | ast.AsyncFor)
        }
        self._computed = {
            name
            for record in self._text.records
            if _is_computed(record.value)
            for name in record.targets
        }
        calls = [(scope, one) for scope, one in nodes if isinstance(one, ast.Call)]
        for scope, call in calls:
            if _is_together(call):
                self._together.update(self._given(scope, call))
        for scope, call in calls:
            if name_of(call.func) in BACKWARD:
                loops = [one for at, one in nodes if at is scope and isinstance(one, LOOP)]
                around = [one for one in loops if _has(one, call)]
                self._begun |= self._on_the_way(scope, call, around)
        for record in self._text.records:
            for name in self._read(record.scope, [record.value, *record.tests]):
                self._readers.setdefault(name, []).append(record)

    def _on_the_way(
        self, scope: Function | None, call: ast.Call, around: Collection[ast.stmt]
    ) -> set[Name]:
        """The names of what a backward begins at, and of what its loop, or its function, computes
        only for that.
        """
        inner = min(around, key=_length, default=None)
        outside = set[Name]()
        inside: dict[Name, list[Assignment]] = {}
        for record in self._text.records:
            within = record.scope is scope and (inner is None or _is_within(record.value, inner))
            for name in record.targets:
                if id(record.value) in self._headers:
                    continue
                if within:
                    inside.setdefault(name, []).append(record)
                else:
                    outside.add(name)
        todo = [
            name
            for node, whole in _begun(call)
            for name in self._read(scope, [node])
            if (name in self._computed if whole else name in inside.keys() - outside)
        ]
        items = _items(inner) if isinstance(inner, ast.For | ast.AsyncFor) else ()
        todo += {self._text.project.named(scope, name) for name in items} - outside
        found = set(todo)
        while todo:
            name = todo.pop()
            for record in () if name in outside else inside.get(name, ()):
                read = set(self._read(scope, [record.value])) & inside.keys()
                new = read - outside - found
                found |= new
                todo += new
        return found

    def _followed(self, begun: set[Name]) -> set[Name]:
        """These names, and all that comes of them, from record to record."""
        found = begun - self._together
        todo = list(found)
        while todo:
            for record in self._readers.get(todo.pop(), ()):
                written = {_entry(one, record) for one in record.targets if one[1] not in OBJECTS}
                new = written - found - self._together
                found |= new
                todo += new
        return found

    def _read(self, scope: Function | None, roots: Collection[ast.AST]) -> Iterator[Name]:
        project = self._text.project
        todo = list(roots)
        while todo:
            node = todo.pop()
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                    continue  # it is written, not executed
                case ast.Call() if _is_together(node) or name_of(node.func) in SHAPES:
                    continue
                case ast.Call():
                    for function in project.functions.get(name_of(node.func), ()):
                        yield id(function), RESULT
                case ast.Name(id=name):
                    yield project.named(scope, name)
                case ast.Attribute(attr=name) if name in SHAPES or name == "grad":
                    continue
                case ast.Subscript(value=owner, slice=ast.Constant(value=str() as key)):
                    if isinstance(owner, ast.Name):
                        yield _keyed(project.named(scope, owner.id), key)
                    elif isinstance(owner, ast.Attribute):
                        yield _keyed((ATTRIBUTE, owner.attr), key)
                case ast.Attribute(value=owner, attr=name):
                    yield ATTRIBUTE, name
                    if isinstance(owner, ast.Name) and owner.id in OBJECTS:
                        continue
                case _:
                    pass
            todo += children(node)

    def _given(self, scope: Function | None, call: ast.Call) -> Iterator[Name]:
        """The names that a collective is given, and so leaves the same on all ranks."""
        for argument in (*call.args, *(one.value for one in call.keywords)):
            for node in walk(argument):
                match node:
                    case ast.Name(id=name):
                        yield self._text.project.named(scope, name)
                    case ast.Attribute(attr=name):
                        yield ATTRIBUTE, name


def _begun(call: ast.Call) -> Iterator[tuple[ast.AST, bool]]:
    """The things that a backward begins at: variables and attributes that are the loss or a term
    of it, each with True, or else those of which it is computed.
    """
    todo: list[ast.AST] = [*call.args]
    if not todo and isinstance(call.func, ast.Attribute):
        todo.append(call.func.value)
    while todo:
        node = todo.pop()
        match node:
            case ast.Name() | ast.Attribute():
                yield node, True
            case ast.BinOp(left=left, right=right):
                todo += [left, right]
            case ast.Call(func=ast.Attribute(attr="scale"), args=args):
                todo += args
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in METHODS:
                todo.append(value)
            case ast.Call():
                yield from ((one, False) for one in children(node))


def _items(loop: ast.For | ast.AsyncFor) -> Iterator[str]:
    """The variables that a loop gives its data, by its header: numbers in their order are none."""
    todo = [(loop.target, loop.iter)]
    while todo:
        target, header = todo.pop()
        pair = target.elts if isinstance(target, ast.Tuple) else []
        match header:
            case ast.Call(func=function) if "range" in name_of(function):
                continue
            case ast.Call(func=ast.Name("enumerate"), args=[data, *_]) if len(pair) == 2:
                todo.append((pair[1], data))
            case ast.Call(func=ast.Name("zip"), args=args) if len(pair) == len(args):
                todo += zip(pair, args, strict=True)
            case ast.Call(func=ast.Name("tqdm"), args=[data, *_]):
                todo.append((target, data))
            case _:
                yield from assigned_names(target)


def _entry(name: Name, record: Assignment) -> Name:
    """The name of what a record writes: an entry by its text is not all of a dict."""
    match record.value:
        case ast.Tuple(elts=[ast.Constant(value=str() as key), _]) as pair:
            return name if hasattr(pair, "lineno") else _keyed(name, key)
    return name


def _keyed(name: Name, key: str) -> Name:
    return name[0], f"{name[1]}[{key!r}]"


def _is_computed(value: ast.AST) -> bool:
    """True of a value that is more than a factor."""
    calls = (node for node in walk(value) if isinstance(node, ast.Call))
    return any(name_of(call.func) not in FUNCTIONS for call in calls)


def _is_within(value: ast.AST, loop: ast.stmt) -> bool:
    """True of what the body of the loop computes, and not its header."""
    lines = (line for node in walk(value) if (line := getattr(node, "lineno", None)) is not None)
    return loop.lineno < next(lines, 0) <= (loop.end_lineno or loop.lineno)


def _has(loop: ast.AST, call: ast.Call) -> bool:
    return any(node is call for node in walk(loop))


def _length(loop: ast.stmt) -> int:
    return (loop.end_lineno or loop.lineno) - loop.lineno


def _is_together(call: ast.Call) -> bool:
    name = name_of(call.func).lower()
    return any(word in name for word in TOGETHER)
