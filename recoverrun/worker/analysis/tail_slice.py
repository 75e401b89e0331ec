"""The statements of a loop's body behind a backward that only compute variables from others.

    loss.backward()
    optimizer.step()                                    # left out
    state.mean = 0.9 * state.mean + 0.1 * loss.item()   # kept
    bank[at : at + len(k)] = k.detach()                 # kept

A slice, compiled to work on copies: each path that it writes is a variable of its own there, so
that it changes nothing of the script's, as long as all that it reads are plain values (`given`):
a method of the script's own may do anything. What it computes of things that a statement which is
left out may have changed is no part of it. Whether it gives what the script itself computes is not
proved here: whoever goes by it compares the two (`replay.tails`).
"""

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import CodeType

from recoverrun.worker.analysis.pure_statements import (
    FUNCTIONS,
    KEEPS,
    Path,
    changes_owner,
    is_rebound_and_changed,
    path_of,
    paths_written,
)
from recoverrun.worker.analysis.syntax_trees import walk

WAYS_OUT = (ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await)
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOP = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, slots=True)
class TailSlice:
    """The slice. It is executed with the variable of each path in place of the path."""

    code: CodeType
    written: dict[Path, str]  # the paths that it tells, each with its variable
    begins: dict[Path, str]  # all paths that it writes: what they are before is their variable's
    reads: frozenset[str]  # names that it reads, of variables and attributes
    given: frozenset[Path]  # the other paths that it reads
    calls: frozenset[str]  # built-in functions that it calls


def tail_behind(
    body: Sequence[ast.stmt],
    line: int,
    filename: str,
    names: frozenset[str],
    others: frozenset[str] = frozenset(),
) -> TailSlice | None:
    """The slice of `body` behind the statement at `line`, as far as variables and attributes of
    these `names` need it; None if there is nothing to compute. Code elsewhere may change what is
    called as one of `others`.
    """
    at = next((n for n, one in enumerate(body) if one.lineno <= line <= _end(one)), len(body))
    kept, tainted = list[tuple[ast.stmt, set[Path]]](), set(others)
    for inner in body[at : at + 1]:
        tainted |= _changed(inner)
    rest = body[at + 1 :]
    for number, statement in enumerate(rest):
        if any(isinstance(inner, WAYS_OUT) for inner in walk(statement)):
            for inner in rest[number:]:
                tainted |= _changed(inner)
            break
        paths = paths_written(statement)
        if paths is None or not tainted.isdisjoint(_names(statement)):
            tainted |= _changed(statement)
        else:
            kept.append((statement, paths))
    written = {path for _, paths in kept for path in paths}
    told = {
        path
        for path in written
        if _last_name(path) in names
        and tainted.isdisjoint(path)
        and not _is_within_another(path, written)
    }
    needed = _needed(kept, told)
    written = {path for _, paths in needed for path in paths}
    written = {path for path in written if not _is_within_another(path, written)}
    return _compiled([one for one, _ in needed], written, told, filename) if told else None


def _needed(
    kept: Sequence[tuple[ast.stmt, set[Path]]], told: set[Path]
) -> list[tuple[ast.stmt, set[Path]]]:
    """The statements of which these paths come, in their order."""
    names, found = {_last_name(path) for path in told}, list[tuple[ast.stmt, set[Path]]]()
    for statement, paths in reversed(kept):
        if not names.isdisjoint(map(_last_name, paths)):
            found.insert(0, (statement, paths))
            names |= set(_names(statement))
    return found


def _compiled(
    kept: Sequence[ast.stmt], written: set[Path], told: set[Path], filename: str
) -> TailSlice | None:
    variables = {path: f"__behind{number}" for number, path in enumerate(sorted(written))}
    names = frozenset(name for one in kept for name in _names(one))
    replaced = _Replaced(variables)
    module = ast.Module([replaced.visit(copy.deepcopy(one)) for one in kept], [])
    if replaced.around:
        return None  # what holds a path that is written is read as a whole
    if is_rebound_and_changed(kept):
        return None
    ast.fix_missing_locations(module)
    return TailSlice(
        code=compile(module, filename, "exec"),
        written={path: name for path, name in variables.items() if path in told},
        begins=variables,
        reads=names,
        given=frozenset(path for one in kept for path in _read(one)) - written,
        calls=frozenset(name for one in kept for name in _called(one)),
    )


def _read(node: ast.AST) -> Iterator[Path]:
    """The longest paths in it; what is called is none."""
    match node:
        case ast.Call(func=function, args=arguments, keywords=keywords):
            owner = [function.value] if isinstance(function, ast.Attribute) else []
            parts: list[ast.AST] = [*owner, *arguments, *keywords]
        case _ if path := path_of(node):
            yield path
            return
        case _:
            parts = list(ast.iter_child_nodes(node))
    for part in parts:
        yield from _read(part)


def _called(statement: ast.stmt) -> Iterator[str]:
    for node in walk(statement):
        match node:
            case ast.Call(func=ast.Name(id=name)):
                yield name


class _Replaced(ast.NodeTransformer):
    """Paths become variables. `around` is True if the owner of one is used otherwise."""

    def __init__(self, variables: dict[Path, str]) -> None:
        self._variables = variables
        self._owners = {path[:n] for path in variables for n in range(1, len(path))}
        self.around = False

    def _visit(self, node: ast.Name | ast.Attribute | ast.Subscript) -> ast.AST:
        path = path_of(node)
        if path in self._variables:
            return ast.copy_location(ast.Name(self._variables[path], node.ctx), node)
        self.around |= path in self._owners
        if path and not isinstance(node, ast.Name):
            return self._on_the_way(node)
        return self.generic_visit(node)

    visit_Name = visit_Attribute = visit_Subscript = _visit

    def _on_the_way(self, node: ast.Attribute | ast.Subscript) -> ast.AST:
        """A longer path: its owners are not used as a whole."""
        around = self.around
        found = self.generic_visit(node)
        self.around = around
        return found


def _last_name(path: Path) -> str:
    """The last name on the way that is no key of an entry."""
    return next(name for name in reversed(path) if not name.startswith("["))


def _is_within_another(path: Path, paths: set[Path]) -> bool:
    return any(path[:n] in paths for n in range(1, len(path)))


def _end(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def _names(statement: ast.AST) -> Iterator[str]:
    """The names of variables, attributes and entries in a statement."""
    for node in walk(statement):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Subscript(slice=ast.Constant(value=str() as key)):
                yield f"[{key!r}]"


def _changed(statement: ast.stmt) -> set[str]:
    """The names that a statement which is left out may have changed: what it stores to, what its
    calls are given, and the owners of its methods.
    """
    found = set[str]()
    for node in walk(statement):
        if isinstance(node, ast.Call) and not _keeps(node.func):
            found |= {name for one in (*node.args, *node.keywords) for name in _given(one)}
    for node in walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
                found.add(name)
            case ast.Subscript(value=value, slice=key, ctx=ast.Store() | ast.Del()):
                found |= {_last(value)}
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found.add(f"[{key.value!r}]")
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method not in KEEPS:
                found |= {_last(value)}
            case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.ClassDef():
                names = getattr(node, "names", None) or [node]
                found |= {getattr(one, "asname", None) or one.name for one in names}
    return found - {""}


def _keeps(function: ast.expr) -> bool:
    match function:
        case ast.Name(id="print"):
            return True
        case ast.Name(id=name):
            return name in FUNCTIONS
        case ast.Attribute(attr=name):
            return name in KEEPS
    return False


def _given(argument: ast.AST) -> Iterator[str]:
    """The names of things that a call is given itself; what is computed of them is another one."""
    match argument:
        case ast.Starred(value=value) | ast.keyword(value=value):
            yield from _given(value)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            for one in parts:
                yield from _given(one)
        case ast.Name() | ast.Attribute() | ast.Subscript():
            path = path_of(argument)
            yield from path or (_last(argument),)


def changed_elsewhere(trees: Mapping[str, ast.Module], filename: str, line: int) -> frozenset[str]:
    """The names of attributes, entries and variables of modules that other code may change while
    the loop at `line` of a file runs: other functions but for those that make objects, and what
    stands around it in loops further out.
    """
    found = set[str]()
    for name, tree in trees.items():
        here = name == filename
        functions = [one for one in walk(tree) if isinstance(one, FUNCTION)]
        for one in functions:
            if one.name != "__init__" and not (here and _contains(one, line)):
                found.update(_reached(one, frozenset()))
        outer = [one for one in walk(tree) if here and isinstance(one, LOOP)]
        own = {id(node) for one in outer if one.lineno == line for node in walk(one)}
        for around in outer:
            if around.lineno != line and _contains(around, line):
                found.update(_reached(around, own))
    return frozenset(found - {""})


def _reached(code: ast.AST, but: Set[int]) -> Iterator[str]:
    for node in walk(code):
        if id(node) in but:
            continue
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.Subscript(value=value, slice=key, ctx=ast.Store() | ast.Del()):
                yield _last(value)
                if isinstance(key, ast.Constant):
                    yield f"[{key.value!r}]"
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if changes_owner(method):
                yield _last(value)


def _contains(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= _end(node)


def _last(node: ast.expr) -> str:
    """The last name of what a method or an element is of."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
