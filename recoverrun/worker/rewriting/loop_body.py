"""A loop's body as code that can be re-executed outside its function.

The copy is compiled as a module and executed in a plain dict. What a function's body may do and a
module may not is rewritten:

* `break` and `continue` of the loop, and `return`, leave the body natively (so that `with` and
  `finally` see what they always see: no exception), and only then raise `Unwind`. The body stands
  in a `while True:` that runs once; EXIT_NAME remembers by which way it was left.
* `nonlocal` has nothing to refer to: names of the function are globals of the copy.
* `super()` finds its class and its instance by magic cells: it is given both.
* the compiler mangles private names (`self.__x`) only inside the class: it is done here.
* annotations of local variables, which a function never evaluates, go.
* `except:` must not swallow an `Unwind` that a hook raises deep inside: it is let through first.
"""

import ast
import copy
from collections.abc import Sequence
from typing import TypeVar

from recoverrun.worker.analysis.scopes import local_names, scope_nodes
from recoverrun.worker.analysis.suspensions import AbortAtSuspension
from recoverrun.worker.instrumentation import EXIT_NAME, RUNTIME_NAME

N = TypeVar("N", bound=ast.AST)

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def prepare(nodes: Sequence[N], class_name: str, first: str) -> list[N]:
    """Return copies in which names mean outside of the class what they meant inside.

    `first` is the argument of the function around that `super()` takes; both are "" if none.
    """
    copies = [copy.deepcopy(node) for node in nodes]
    if not class_name:
        return copies
    for node in copies:
        _ExplicitSuper(first).visit(node)
        _Mangler(class_name).visit(node)
    return copies


def body_module(body: Sequence[ast.stmt], where: ast.stmt, filename: str) -> ast.Module:
    """Return the module that executes a prepared body once. Changes the nodes of `body`.

    Raises CannotRepeat.
    """
    transformed = _statements(AbortAtSuspension(filename), body)
    transformed = _statements(_Scopes(), transformed)
    transformed = _statements(_Exits(), transformed)
    once = ast.parse(
        f"{EXIT_NAME} = ''\n"
        "while True:\n"
        "    break\n"
        f"if {EXIT_NAME}:\n"
        f"    raise {RUNTIME_NAME}.Unwind({EXIT_NAME})\n"
    )
    for node in ast.walk(once):
        copy_position(node, where)
    loop = once.body[1]
    assert isinstance(loop, ast.While), f"the template changed: {ast.dump(loop)}"
    loop.body[:0] = transformed
    return once


def refusal_of(body: Sequence[ast.stmt], filename: str) -> str:
    """Return why a body cannot be executed again, or ""."""
    for node in scope_nodes(body):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return f"{filename}:{line}: `import *` in the loop body binds names that are not known"
        if isinstance(node, ast.Call) and _is_bare_exec(node):
            return (
                f"{filename}:{line}: exec() without a namespace in the loop body "
                "binds names that are not known"
            )
    return ""


def copy_position(node: ast.AST, where: ast.AST) -> None:
    """Give a node the position of another, so that a traceback points at the script's own text."""
    if "lineno" in node._attributes:
        ast.copy_location(node, where)


def mangled(name: str, class_name: str) -> str:
    """Return the name as the compiler spells it inside the class (3.11 language reference, 6.2.1).

    `class_name` "" and names that are not private leave it as it is.
    """
    owner = class_name.lstrip("_")
    if not owner or not name.startswith("__") or name.endswith("__") or "." in name:
        return name
    return f"_{owner}{name}"


def first_argument(function: Function) -> str:
    """Return the name that `super()` in this function takes its instance from, "" for none."""
    positional = [*function.args.posonlyargs, *function.args.args]
    return positional[0].arg if positional else ""


def _statements(transformer: ast.NodeTransformer, body: Sequence[ast.stmt]) -> list[ast.stmt]:
    result: list[ast.stmt] = []
    for statement in body:
        changed = transformer.visit(statement)
        result.extend(changed if isinstance(changed, list) else [changed])
    return result


def _is_bare_exec(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "exec" and len(node.args) < 2


class _ExplicitSuper(ast.NodeTransformer):
    """`super()` becomes `super(__class__, <first argument>)`; a nested class keeps its own."""

    def __init__(self, first: str) -> None:
        self.first = first

    def _visit_function(self, node: Function) -> ast.AST:
        outer, self.first = self.first, first_argument(node)
        self.generic_visit(node)
        self.first = outer
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_super = isinstance(node.func, ast.Name) and node.func.id == "super"
        if is_super and self.first and not node.args and not node.keywords:
            names = [ast.Name(name, ast.Load()) for name in ("__class__", self.first)]
            for name in names:
                copy_position(name, node)
            node.args = list(names)
        return node


class _Mangler(ast.NodeTransformer):
    """Spells private names as the compiler does inside `class_name`.

    It leaves the inside of a nested class, whose names the compiler mangles with that one's name,
    and keywords of calls, which it does not mangle.
    """

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name

    def _name(self, name: str) -> str:
        return mangled(name, self.class_name)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._name(node.name)
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        return node

    def _visit_named(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.name = self._name(node.name)
        return self.generic_visit(node)

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_named

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._name(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = self._name(node.attr)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._name(node.arg)
        return self.generic_visit(node)

    def _visit_declaration(self, node: ast.Global | ast.Nonlocal) -> ast.AST:
        node.names = [self._name(name) for name in node.names]
        return node

    visit_Global = visit_Nonlocal = _visit_declaration

    def visit_alias(self, node: ast.alias) -> ast.AST:
        bound = self._name(node.asname or node.name)
        if bound != (node.asname or node.name):
            node.asname = bound
        return node

    def _visit_optional(self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar) -> ast.AST:
        if node.name:
            node.name = self._name(node.name)
        return self.generic_visit(node)

    visit_ExceptHandler = visit_MatchAs = visit_MatchStar = _visit_optional

    def visit_MatchMapping(self, node: ast.MatchMapping) -> ast.AST:
        if node.rest:
            node.rest = self._name(node.rest)
        return self.generic_visit(node)


class _Scopes(ast.NodeTransformer):
    """Resolves `nonlocal`, drops annotations of local variables, and lets Unwind through."""

    def __init__(self) -> None:
        self.scopes: list[set[str]] = []  # names bound by the nested functions around, outer first

    def _visit_function(self, node: Function) -> ast.AST:
        self.scopes.append(local_names(node))
        self.generic_visit(node)
        self.scopes.pop()
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST | list[ast.AST]:
        kept = [name for name in node.names if any(name in scope for scope in self.scopes)]
        freed = [name for name in node.names if name not in kept]
        nodes: list[ast.AST] = []
        if kept:
            nodes.append(ast.copy_location(ast.Nonlocal(kept), node))
        if freed and self.scopes:
            nodes.append(ast.copy_location(ast.Global(freed), node))
        return nodes or ast.copy_location(ast.Pass(), node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.scopes.append(set())
        self.generic_visit(node)
        self.scopes.pop()
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if self.scopes:
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_Try(self, node: ast.Try) -> ast.AST:
        self.generic_visit(node)
        if node.handlers:
            through = ast.parse(f"try: pass\nexcept {RUNTIME_NAME}.Unwind: raise").body[0]
            assert isinstance(through, ast.Try), f"the template changed: {ast.dump(through)}"
            for inner in ast.walk(through.handlers[0]):
                copy_position(inner, node.handlers[0])
            node.handlers.insert(0, through.handlers[0])
        return node


class NotReexecutable(Exception):
    """The body has no form that can be executed again; the message says why."""


class _Exits(ast.NodeTransformer):
    """Turns the ways out of the body into a note of the way, and a `break` out of `while True`.

    A `finally` may call off a way that was taken, by an error or by a jump of its own: the note is
    wiped where that shows. Ways out that are nested inside a `finally` would need a note each.
    """

    def __init__(self) -> None:
        self.depth = 0  # loops of the body around the statement
        self.exits = 0  # met so far
        self.returns = 0  # those of them that also leave loops of the body
        self.finals: list[int] = []  # depth at each `finally` around the statement

    def _keep(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = _keep

    def _visit_loop(self, node: ast.For | ast.While) -> list[ast.stmt]:
        exits, returns = self.exits, self.returns
        self.depth += 1
        node.body = _statements(self, node.body)
        self.depth -= 1
        returned = self.returns > returns
        node.orelse = _statements(self, node.orelse)
        self._check(exits, node)
        return (
            [node, *_placed(f"while True:\n if {EXIT_NAME}: break", node)] if returned else [node]
        )

    visit_For = visit_While = _visit_loop

    def _visit_with(self, node: ast.With | ast.AsyncWith) -> list[ast.stmt]:
        exits = self.exits
        node.body = _statements(self, node.body)
        return self._wiped_after(node, exits)

    visit_With = visit_AsyncWith = _visit_with

    def _visit_try(self, node: ast.Try | ast.TryStar) -> list[ast.stmt]:
        exits = self.exits
        node.body = _statements(self, node.body)
        pending = self.exits > exits
        node.orelse = _statements(self, node.orelse)
        for handler in node.handlers:
            handler.body = _statements(self, handler.body)
            if pending:
                handler.body[:0] = _note("", handler)
        self.finals.append(self.depth)
        node.finalbody = _statements(self, node.finalbody)
        self.finals.pop()
        return self._wiped_after(node, exits)

    visit_Try = visit_TryStar = _visit_try

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        return self._jump("break", node)

    def visit_Continue(self, node: ast.Continue) -> list[ast.stmt]:
        return self._jump("continue", node)

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        self.returns += 1
        value = [ast.copy_location(ast.Expr(node.value), node)] if node.value is not None else []
        return [*value, *self._leave("return", node)]

    def _jump(self, way: str, node: ast.Break | ast.Continue) -> list[ast.stmt]:
        if not self.depth:
            return self._leave(way, node)
        calls_off = bool(self.finals) and self.finals[-1] == self.depth
        return [*_note("", node), node] if calls_off else [node]

    def _leave(self, way: str, where: ast.stmt) -> list[ast.stmt]:
        self.exits += 1
        return [*_note(way, where), *_placed("while True:\n break", where)]

    def _wiped_after(self, node: ast.stmt, exits: int) -> list[ast.stmt]:
        # Whoever gets to the next statement is not on the way out.
        self._check(exits, node)
        return [node, *_note("", node)] if self.exits > exits else [node]

    def _check(self, exits: int, node: ast.stmt) -> None:
        if self.finals and self.exits > exits:
            raise NotReexecutable(f"line {node.lineno}: a `finally` is left from deep inside")


def _note(way: str, where: ast.AST) -> list[ast.stmt]:
    return _placed(f"while True:\n {EXIT_NAME} = {way!r}", where)


def _placed(template: str, where: ast.AST) -> list[ast.stmt]:
    """Return the statements of a loop's body, from text (a `break` cannot be parsed elsewhere)."""
    loop = ast.parse(template).body[0]
    assert isinstance(loop, ast.While), f"not a loop: {template!r}"
    for node in ast.walk(loop):
        copy_position(node, where)
    return loop.body
