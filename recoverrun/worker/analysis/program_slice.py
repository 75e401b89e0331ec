"""A program slice by names: variables and attributes that may influence a microbatch's gradient.

A script keeps stopwatches, running losses and logs beside the data of its batches. All of these
differ between ranks and change, but only what code before the backward reads can change the
gradient. The slice holds the names in that code and in all functions that it may reach: by name, as
a magic method, a property, a generator or a module's `forward`, or as a function that was passed to
a library. A name stands for all variables and attributes of that name, which errs on the side of
too many. `x += 1`, `x.append(1)`, `x["loss"] = 1` and `x["loss"].append(1)` count as no read of
`x`.
"""

import ast
import builtins
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recoverrun.worker.analysis.access_paths import access_path, read_paths
from recoverrun.worker.analysis.bare_names import RESULT, name_of
from recoverrun.worker.analysis.call_graph import BackwardCalls, build_call_graph
from recoverrun.worker.analysis.handed_names import HandedNames
from recoverrun.worker.analysis.module_facts import (
    CodeFacts,
    Function,
    ModuleFacts,
    Place,
    facts_of,
    facts_of_code,
)
from recoverrun.worker.analysis.scopes import free_reads
from recoverrun.worker.analysis.syntax_trees import gc_paused, walk
from recoverrun.worker.instrumentation import Loop

AnyLoop = ast.For | ast.AsyncFor | ast.While


@dataclass(frozen=True, slots=True)
class SliceNames:
    """The names that a microbatch may depend on: `variables` around it, and `attributes`, to which
    the names of other modules belong.
    """

    variables: frozenset[str]
    attributes: frozenset[str]
    counted: frozenset[str]  # variables that it may add to
    written: frozenset[str]  # surely, in the loop's own text before the backward
    gone_over: frozenset[str]  # paths that the loop goes over, and reads nowhere else before it


@dataclass(slots=True)
class Texts:
    """The texts of the script's own modules by file name, and what was found in them before."""

    sources: dict[str, bytes] = field(default_factory=dict)
    _facts: dict[str, ModuleFacts] = field(default_factory=dict)

    def load(self, modules: Iterable[str]) -> None:
        """Read the files of loaded modules that have a source and were not read before."""
        for name in modules:
            path = getattr(sys.modules.get(name), "__file__", None) or ""
            if path not in self.sources:
                try:
                    self.sources[path] = Path(path).read_bytes()
                except OSError:
                    continue  # what the loop calls in there cannot be told: it is not found

    def tree(self, filename: str) -> ast.Module | None:
        """The syntax tree of a file, None if there is none."""
        try:
            return ast.parse(self.sources.get(filename, b""), filename)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def trees(self) -> dict[str, ast.Module]:
        """The syntax trees of all files that have one."""
        with gc_paused():
            trees = {name: self.tree(name) for name in self.sources}
        return {name: tree for name, tree in trees.items() if tree is not None}

    def facts(self, filename: str) -> ModuleFacts:
        """The facts of a file, empty if it has errors."""
        if filename not in self._facts:
            tree = self.tree(filename)
            self._facts[filename] = ModuleFacts() if tree is None else facts_of(tree)
        return self._facts[filename]


@dataclass(slots=True)
class _Project:
    """The facts of all modules together."""

    functions: dict[str, list[tuple[str, CodeFacts]]]  # by bare name, each with its file
    roots: list[tuple[str, CodeFacts]]  # may run at any time
    passed: set[str]  # names of functions that are passed to any call
    known: set[str]  # a call of another name may be of any function that is passed around
    variables: dict[str, set[str]]  # of modules, by file
    aliases: dict[str, set[str]]  # what a name may stand for
    handed: HandedNames

    @classmethod
    def of(cls, modules: Mapping[str, ModuleFacts]) -> "_Project":
        functions: dict[str, list[tuple[str, CodeFacts]]] = {}
        for filename, facts in modules.items():
            for name, found in facts.functions.items():
                functions.setdefault(name, []).extend((filename, one) for one in found)
        passed, roots = set[str](), list[tuple[str, CodeFacts]]()
        for facts in modules.values():
            for callee, arguments in facts.passed:
                names = arguments & functions.keys()
                passed |= names
                if names and callee not in functions:  # a library may call them
                    roots += [one for name in names for one in functions[name]]
        roots += [one for found in functions.values() for one in found if one[1].implicit]
        aliases = _aliases(modules.values())
        known = set(dir(builtins)).union(aliases, *(facts.known for facts in modules.values()))
        variables = {name: facts.variables | facts.known for name, facts in modules.items()}
        return cls(functions, roots, passed, known, variables, aliases, HandedNames(modules))


def _aliases(modules: Iterable[ModuleFacts]) -> dict[str, set[str]]:
    """Names that each name may stand for. A call counts if it may return a function."""
    aliases: dict[str, set[str]] = {}
    for facts in modules:
        for name, sources in facts.aliases.items():
            aliases.setdefault(name, set()).update(sources)
    makers = _makers(modules, aliases)
    return {
        name: {
            source.removesuffix(RESULT)
            for source in sources
            if not source.endswith(RESULT) or source.removesuffix(RESULT) in makers
        }
        for name, sources in aliases.items()
    }


def _makers(modules: Iterable[ModuleFacts], aliases: Mapping[str, set[str]]) -> set[str]:
    """Names of what may return a function: those that stand for, or are given, one that does."""
    parameters: dict[str, set[tuple[str, ...]]] = {}
    others: dict[str, set[str]] = {}  # names that stand for a name
    for facts in modules:
        for callee, names in facts.parameters:
            parameters.setdefault(callee, set()).add(names)
    for name, sources in aliases.items():
        for source in sources:
            others.setdefault(source, set()).add(name)
    for facts in modules:
        for callee, position, source in facts.arguments:
            given = (names[position] for names in parameters.get(callee, ()) if names[position:])
            others.setdefault(source, set()).update(given)
    makers = set[str]().union(*(facts.makers for facts in modules))
    todo = list(makers)
    while todo:
        more = others.get(todo.pop(), set()) - makers
        makers |= more
        todo += more
    return makers


def slice_before_backward(loop: Loop, texts: Texts) -> SliceNames | None:
    """Return what may be read from the top of `loop`'s body to its backward; None if anything may.

    `texts` are those of the script's own modules.
    """
    with gc_paused():
        tree = texts.tree(loop.filename)
        node = _loop_at(tree, loop.line) if tree is not None else None
        if tree is None or node is None:
            return None
        graph, _ = build_call_graph(texts.sources.items(), lambda name, _: texts.tree(name))
        head = _until_backward(node, graph.backward_names().of(loop.filename).calls_in(tree))
        if not head:
            return None
        project = _Project.of({name: texts.facts(name) for name in texts.sources})
        return _slice(head, project, loop, tree, enclosing_functions(tree, node))


def body_of(loop: Loop, texts: Texts) -> list[ast.stmt]:
    """Return the statements of the body of `loop`; none if its text is not known."""
    with gc_paused():
        tree = texts.tree(loop.filename)
        node = _loop_at(tree, loop.line) if tree is not None else None
        return [] if node is None else node.body


def enclosing_functions(tree: ast.Module, loop: ast.AST) -> list[Function]:
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


def _functions_of(tree: ast.Module) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Yield the functions of the module and the methods of its classes, each with its class."""
    for node in tree.body:
        if isinstance(node, Function):
            yield node, None
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, Function):
                    yield method, node


def _surely_calls(
    caller: tuple[Function, ast.ClassDef | None], name: str, owner: ast.ClassDef | None
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


def _until_backward(node: AnyLoop, calls: BackwardCalls) -> list[ast.AST]:
    """Return the loop's header, and its statements up to the last that may run a backward."""
    reaching = [at for at, statement in enumerate(node.body) if calls.reached_by([statement])]
    if not reaching:
        return []
    header = [node.test] if isinstance(node, ast.While) else [node.iter, node.target]
    return [*header, *node.body[: reaching[-1] + 1]]


def _slice(
    head: list[ast.AST],
    project: _Project,
    loop: Loop,
    tree: ast.Module,
    outside: Iterable[Function],
) -> SliceNames | None:
    """The names read by `head`, and by what it may run, which is not `outside`."""
    begun = facts_of_code(head)
    names, counted = set[str](), set[str]()
    variables = begun.mentioned & loop.live_in
    here = {_place(one): one for one in walk(tree) if isinstance(one, Function)}
    visited = {(loop.filename, _place(one)) for one in outside}
    handed = project.handed
    variables |= handed.read(loop.filename, begun) & loop.live_in
    todo = [("", begun), *project.roots]
    while todo:
        filename, code = todo.pop()
        if (filename, code.place) in visited:
            continue
        visited.add((filename, code.place))
        if code.reflects:
            return None
        if filename == loop.filename:
            variables |= free_reads(here[code.place])
        elif filename:  # what it reads of its module may be known here by the same name
            told = code.mentioned | code.counted | handed.read(filename, code)
            variables |= told & project.variables[filename]
        here_in = filename or loop.filename
        reached = (code.mentioned | handed.read(here_in, code)) - names
        names |= reached
        counted |= code.counted | handed.added_to(here_in, code)
        if code.calls_any or not code.called <= project.known:
            reached |= project.passed
        for name in _with_aliases(reached, project.aliases):
            todo += project.functions.get(name, [])
    written = frozenset(_surely_written(head))
    gone_over = _gone_over(head)
    return SliceNames(
        frozenset(variables), frozenset(names), frozenset(counted), written, gone_over
    )


def _surely_written(head: Sequence[ast.AST]) -> Iterator[str]:
    """Names that every iteration writes on its way to the end of `head`."""
    for at, node in enumerate(head):
        match node:
            case ast.If() | ast.Try() | ast.Match() | ast.For() | ast.While() if at + 1 < len(head):
                continue  # it may do nothing
            case ast.With() | ast.AsyncWith() | ast.For() | ast.AsyncFor():
                yield from _stored(ast.iter_child_nodes(node))
                yield from _surely_written(node.body)
            case ast.If() if node.orelse:
                ways = (_surely_written(way) for way in (node.body, node.orelse))
                yield from frozenset.intersection(*map(frozenset, ways))
            case ast.If() | ast.Try() | ast.While():
                yield from _surely_written(node.body)
            case _:
                yield from _stored([node])


def written_first(body: Iterable[ast.stmt]) -> frozenset[str]:
    """Names that a loop's body writes before it reads or calls anything, whatever it runs then."""
    return frozenset(_stored(itertools.takewhile(_is_plain_write, body)))


def _is_plain_write(statement: ast.AST) -> bool:
    """True of `a.b = None` and `a = b`."""
    plain = isinstance(statement, ast.Assign) and isinstance(
        statement.value, ast.Constant | ast.Name
    )
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return plain and all(access_path(target) for target in targets)


def _stored(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that are written where no statement stands around."""
    for node in nodes:
        if not isinstance(node, ast.stmt) or isinstance(node, ast.Assign | ast.AnnAssign):
            yield from (
                name_of(one)
                for one in walk(node)
                if isinstance(one, ast.Name | ast.Attribute) and isinstance(one.ctx, ast.Store)
            )


def _gone_over(head: list[ast.AST]) -> frozenset[str]:
    """`a.b` in the header `for x in enumerate(a.b)`, if only its length is read elsewhere."""
    if not isinstance(head[1], ast.expr):
        return frozenset()  # of a `while`
    paths = read_paths(head[:1])
    whole = [one for one in paths if not any(other.startswith(f"{one}.") for other in paths)]
    lengths = {id(call.args[0]) for root in head[1:] for call in _calls(root) if _is_length(call)}
    nodes = (node for root in head[1:] for node in walk(root) if id(node) not in lengths)
    return frozenset(whole).difference(
        access_path(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute)
    )


def _is_length(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "len" and len(call.args) == 1


def _place(node: Function) -> Place:
    return node.lineno, node.col_offset


def _with_aliases(names: set[str], aliases: Mapping[str, set[str]]) -> set[str]:
    """Return the names, and all that they may stand for."""
    reached, todo = set(names), list(names)
    while todo:
        more = aliases.get(todo.pop(), set()) - reached
        reached |= more
        todo += more
    return reached


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (inner for inner in walk(node) if isinstance(inner, ast.Call))


def _loop_at(tree: ast.Module, line: int) -> AnyLoop | None:
    for node in walk(tree):
        if isinstance(node, AnyLoop) and node.lineno == line:
            return node
    return None
