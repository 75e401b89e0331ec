"""A program slice by names: variables and attributes that may influence a microbatch's gradient.

A script keeps stopwatches, running losses and logs beside the data of its batches. All of these
differ between ranks and change, but only what code before the backward reads can change the
gradient. The slice holds the names in that code and in all functions that it may reach: by name, as
a magic method, a property, a generator or a module's `forward`, or as a function that was passed to
a library. A name stands for all variables and attributes of that name, which errs on the side of
too many. `x += 1` counts as no read of `x`.
"""

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from recoverrun.worker.analysis.call_graph import CONSTRUCTORS, BackwardNames, CallGraph, name_of
from recoverrun.worker.analysis.scopes import bound_by, free_reads
from recoverrun.worker.analysis.syntax_trees import walk
from recoverrun.worker.instrumentation import Loop

REFLECTION = frozenset({"vars", "asdict", "locals", "globals", "eval", "exec"})
"""A call of one of these may read any name."""

PLAIN_DECORATORS = frozenset(
    {
        "no_grad",
        "inference_mode",
        "enable_grad",
        "staticmethod",
        "classmethod",
        "contextmanager",
        "record",
        "wraps",
        "compile",
    }
)
"""A function with one of these decorators still runs only where its name is mentioned."""

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
AnyLoop = ast.For | ast.AsyncFor | ast.While


@dataclass(slots=True)
class _FunctionIndex:
    """The functions of all modules by bare name, and the calls that they are passed to."""

    functions: dict[str, list[ast.AST]] = field(default_factory=dict)
    roots: list[ast.AST] = field(default_factory=list)  # may run at any time
    passed: set[str] = field(default_factory=set)  # names passed to any call
    to_libraries: set[str] = field(default_factory=set)  # passed to what is not in the project
    known: set[str] = field(default_factory=lambda: set(dir(builtins)))
    aliases: dict[str, set[str]] = field(default_factory=dict)  # what a name may stand for

    def add(self, tree: ast.AST) -> None:
        for node in walk(tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.functions.setdefault(node.name, []).append(node)
                    self.known.add(node.name)
                    if _may_run_implicitly(node):
                        self.roots.append(node)
                case ast.ClassDef():
                    self.known.add(node.name)
                    entered = [n for n in node.body if getattr(n, "name", "") in CONSTRUCTORS]
                    self.functions.setdefault(node.name, []).extend(entered)
                case ast.Import() | ast.ImportFrom():
                    self.known |= bound_by(node)
                case _:
                    pass

    def add_passed(self, tree: ast.AST) -> None:
        """Note which functions are arguments, and of which calls, once all functions are known."""
        for node in walk(tree):
            if isinstance(node, ast.Call):
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                names = {name_of(value) for value in values} & self.functions.keys()
                self.passed |= names
                if name_of(node.func) not in self.functions:
                    self.to_libraries |= names


@dataclass(frozen=True, slots=True)
class SliceNames:
    """The names that a microbatch may depend on: `variables` around it, and `attributes`."""

    variables: frozenset[str]
    attributes: frozenset[str]
    written: frozenset[str]  # names of variables and attributes that it may change


def slice_before_backward(loop: Loop, modules: dict[str, ast.Module]) -> SliceNames | None:
    """Return what may be read from the top of `loop`'s body to its backward; None if anything may.

    `modules` are the syntax trees of the script's own modules, by file name.
    """
    tree = modules.get(loop.filename)
    node = _loop_at(tree, loop.line) if tree is not None else None
    graph, project = CallGraph(), _FunctionIndex()
    for module in modules.values():
        graph.add(module)
        project.add(module)
    for module in modules.values():
        project.add_passed(module)
    project.aliases = {
        name: {
            source.removesuffix("()")
            for source in sources
            if not source.endswith("()") or source[:-2] in graph.makers
        }
        for name, sources in graph.aliases.items()
    }
    head = _until_backward(node, graph.backward_names()) if node is not None else []
    if tree is None or node is None or not head:
        return None
    return _slice(head, project, loop.live_in, enclosing_functions(tree, node))


def enclosing_functions(tree: ast.Module, loop: ast.AST) -> list[ast.AST]:
    """Return the function that `loop` is in, and those that surely call it.

    An iteration of the loop cannot run these: it would train anew. A name alone proves no call of
    them, as `model.train()` shows.
    """
    owners = list(_functions_of(tree))
    enclosing = [owner for owner in owners if any(inner is loop for inner in walk(owner[0]))]
    todo = list(enclosing)
    while todo:
        callee, owner = todo.pop()
        for caller in owners:
            if caller not in enclosing and _surely_calls(caller, callee.name, owner):
                enclosing.append(caller)
                todo.append(caller)
    return [function for function, _ in enclosing]


Named = ast.FunctionDef | ast.AsyncFunctionDef


def _functions_of(tree: ast.Module) -> Iterator[tuple[Named, ast.ClassDef | None]]:
    """Yield the functions of the module and the methods of its classes, each with its class."""
    for node in tree.body:
        if isinstance(node, Named):
            yield node, None
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, Named):
                    yield method, node


def _surely_calls(
    caller: tuple[Named, ast.ClassDef | None], name: str, owner: ast.ClassDef | None
) -> bool:
    function, class_of_caller = caller
    for call in _calls(function):
        match call.func:
            case ast.Name(id=called) if called == name and owner is None:
                return True
            case ast.Attribute(value=ast.Name(id=who), attr=called) if called == name:
                first = function.args.args[0].arg if function.args.args else ""
                if owner is not None and class_of_caller is owner and who == first:
                    return True
            case _:
                pass
    return False


def syntax_trees_of(modules: Iterable[str]) -> dict[str, ast.Module]:
    """Return the syntax trees of loaded modules that have a source, by file name."""
    trees: dict[str, ast.Module] = {}
    for name in modules:
        path = getattr(sys.modules.get(name), "__file__", None)
        try:
            trees[path or ""] = ast.parse(Path(path or "").read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # what the loop calls in there cannot be told: `_slice` does not find it
    return trees


def _until_backward(node: AnyLoop, backward_names: BackwardNames) -> list[ast.AST]:
    """Return the loop's header, and its statements up to the last that may run a backward."""
    reaching = [
        at for at, statement in enumerate(node.body) if backward_names.reached_by([statement])
    ]
    if not reaching:
        return []
    header = [node.test] if isinstance(node, ast.While) else [node.iter, node.target]
    return [*header, *node.body[: reaching[-1] + 1]]


def _slice(
    head: Iterable[ast.AST],
    project: _FunctionIndex,
    live_in: frozenset[str],
    outside: Iterable[ast.AST],
) -> SliceNames | None:
    names: set[str] = set()
    variables: set[str] = set()
    written: set[str] = set()
    visited = {id(function) for function in outside}
    passed = [node for name in project.to_libraries for node in project.functions[name]]
    todo: list[ast.AST] = [*head, *project.roots, *passed]
    while todo:
        node = todo.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        mentioned = set(_reads(node))
        if _uses_reflection(node):
            return None
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        variables |= free_reads(node) if is_function else mentioned & live_in
        reached = mentioned - names
        names |= mentioned
        written |= set(_writes(node))
        if any(_may_call_any(call, project) for call in _calls(node)):
            reached |= project.passed
        for name in _with_aliases(reached, project.aliases):
            todo += project.functions.get(name, [])
    return SliceNames(frozenset(variables), frozenset(names), frozenset(written))


def _with_aliases(names: set[str], aliases: dict[str, set[str]]) -> set[str]:
    """Return the names, and all that they may stand for."""
    reached, todo = set(names), list(names)
    while todo:
        more = aliases.get(todo.pop(), set()) - reached
        reached |= more
        todo += more
    return reached


def _may_call_any(call: ast.Call, project: _FunctionIndex) -> bool:
    """True if the call may be of any function that the script passes around, as a callback is."""
    if isinstance(call.func, ast.Attribute):
        return False  # found by its name, or a library's
    return not isinstance(call.func, ast.Name) or call.func.id not in (
        project.known | project.aliases.keys()
    )


def _reads(node: ast.AST) -> Iterator[str]:
    for inner in walk(node):
        match inner:
            case ast.Name(ctx=ast.Load()):
                yield inner.id
            case ast.Attribute(ctx=ast.Load()):
                yield inner.attr
            case ast.Constant() if isinstance(inner.value, str) and inner.value.isidentifier():
                yield inner.value
            case ast.Delete():
                yield from (name_of(target) for target in inner.targets)
            case ast.MatchClass():
                yield from inner.kwd_attrs
            case _:
                pass


def _writes(node: ast.AST) -> Iterator[str]:
    for inner in walk(node):
        if isinstance(inner, ast.Name | ast.Attribute) and not isinstance(inner.ctx, ast.Load):
            yield name_of(inner)


def _uses_reflection(node: ast.AST) -> bool:
    for inner in walk(node):
        if isinstance(inner, ast.Name) and inner.id in REFLECTION:
            return True
        if isinstance(inner, ast.Attribute) and inner.attr == "__dict__":
            return True
    return False


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (inner for inner in walk(node) if isinstance(inner, ast.Call))


def _may_run_implicitly(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    magic = node.name.startswith("__") and node.name != "__init__"
    waits = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in walk(node))
    decorators = {
        name_of(inner.func if isinstance(inner, ast.Call) else inner)
        for inner in node.decorator_list
    }
    return magic or waits or bool(decorators - PLAIN_DECORATORS) or node.name == "forward"


def _loop_at(tree: ast.Module, line: int) -> AnyLoop | None:
    for node in walk(tree):
        if isinstance(node, AnyLoop) and node.lineno == line:
            return node
    return None
