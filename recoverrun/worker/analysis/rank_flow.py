"""The flow, by names, of what ranks do not have in common: from one loop's top into another loop.

`k = 2 if rank == 3 and step > 90 else 1` stands before `for micro in range(k)`. As long as `k` is 1
on all ranks no comparison of values shows whose it is; the text does. Functions are found by their
bare names, and a name that may be one of several things is all of them.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from recoverrun.worker.analysis.bare_names import CONSTRUCTORS, name_of
from recoverrun.worker.analysis.scopes import bound_by, local_names, scope_nodes
from recoverrun.worker.analysis.syntax_trees import children, walk
from recoverrun.worker.instrumentation import Loop

ASKED = frozenset({"get_rank", "get_node_local_rank", "get_local_rank", "RANK", "LOCAL_RANK"})
"""Functions and environment variables by which a script asks for its own rank."""

MOST_FUNCTIONS = 1_000
"""The limit of functions in reach of an iteration. Beyond it a flow is assumed: following takes
seconds.
"""

Name = tuple[int, str]
"""A local name, by its function's identity. Those of no function have 0, attributes ATTRIBUTE."""

ATTRIBUTE = -1
RESULT = "()"
"""The name of the result of a function, by its identity."""

GOAL: Name = (0, "")
"""Written where a test decides whether the inner loop is reached at all."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Flow:
    """One statement: what it reads, and what it may write with that."""

    reads: frozenset[Name]
    writes: frozenset[Name]


@dataclass(slots=True)
class ProjectFunctions:
    """All functions of the script's own modules, by bare name."""

    functions: dict[str, list[Function]] = field(default_factory=dict)
    around: dict[int, Function | None] = field(default_factory=dict)  # by function
    own: dict[int, frozenset[str]] = field(default_factory=dict)  # local names, by function
    calls: dict[int, list[Function]] = field(default_factory=dict)  # by function
    decorated: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)  # a call of theirs writes to no module

    def add(self, tree: ast.AST) -> None:
        todo: list[tuple[Function | None, ast.AST]] = [(None, tree)]
        while todo:
            around, node = todo.pop()
            if isinstance(node, Function):
                self.functions.setdefault(node.name, []).append(node)
                if node.decorator_list:  # a property, perhaps
                    self.decorated.add(node.name)
                self.around[id(node)] = around
                around = node
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self.imported |= bound_by(node)
            elif isinstance(node, ast.ClassDef):
                entered = [n for n in node.body if isinstance(n, Function)]
                entered = [n for n in entered if n.name in CONSTRUCTORS]
                self.functions.setdefault(node.name, []).extend(entered)
            todo += [(around, child) for child in children(node)]

    def named(self, scope: Function | None, name: str) -> Name:
        """The name as it is read in the function `scope`, or there in functions around it."""
        while scope is not None:
            if id(scope) not in self.own:
                self.own[id(scope)] = frozenset(local_names(scope))
            if name in self.own[id(scope)]:
                return id(scope), name
            scope = self.around.get(id(scope))
        return 0, name

    def called(self, nodes: Iterable[ast.AST]) -> list[Function]:
        """The functions and properties that may run as these nodes do, themselves alone."""
        names = set[str]()
        for root in nodes:
            for node in walk(root):
                if isinstance(node, ast.Call):
                    names.add(name_of(node.func))
                elif isinstance(node, ast.Attribute) and node.attr in self.decorated:
                    names.add(node.attr)
        return [function for name in sorted(names) for function in self.functions.get(name, [])]

    def reached(self, nodes: Iterable[ast.AST]) -> list[Function]:
        """The same, with all that these may call in turn."""
        found, todo = dict[int, Function](), self.called(nodes)
        while todo:
            function = todo.pop()
            if id(function) not in found:
                found[id(function)] = function
                todo += self.calls_of(function)
        return list(found.values())

    def calls_of(self, function: Function) -> list[Function]:
        if id(function) not in self.calls:
            self.calls[id(function)] = self.called(function.body)
        return self.calls[id(function)]

    def read_by(self, scope: Function | None, nodes: Iterable[ast.AST]) -> frozenset[Name]:
        """The names that these nodes read, the results of what they call among them."""
        roots = list(nodes)
        results = ((id(function), RESULT) for function in self.called(roots))
        return frozenset([*self._read_there(scope, roots), *results])

    def all_read_by(self, scope: Function | None, nodes: Iterable[ast.AST]) -> frozenset[Name]:
        """The names that these nodes read, and that all reads which they may call."""
        roots = list(nodes)
        names = set(self._read_there(scope, roots))
        for function in self.reached(roots):
            names.update(self._read_there(function, function.body))
        return frozenset(names)

    def _read_there(self, scope: Function | None, roots: Iterable[ast.AST]) -> Iterator[Name]:
        for root in roots:
            for node in walk(root):
                match node:
                    case ast.Name(ctx=ast.Load()):
                        yield self.named(scope, node.id)
                    case ast.Attribute(ctx=ast.Load()):
                        yield ATTRIBUTE, node.attr
                    case ast.Constant(value=str()) if node.value in ASKED:
                        yield 0, node.value
                    case _:
                        pass


def reaches(
    outer: Loop, inner: Loop, differing: Iterable[str], modules: Mapping[str, ast.Module]
) -> bool:
    """True if, from the top of `outer` to a loop `inner` within it, something that this one reads
    may be computed from what is called as one of `differing`, or from the rank that is asked for.

    `modules` are the syntax trees of the script's own modules, by file name.
    """
    project = ProjectFunctions()
    for tree in modules.values():
        project.add(tree)
    around, within = find_loop(outer, modules), find_loop(inner, modules)
    if around is None or within is None:
        return False
    (home, outer_node), (scope, inner_node) = around, within
    if len(project.reached(outer_node.body)) > MOST_FUNCTIONS:
        return True
    regions: list[tuple[Function | None, list[ast.stmt]]] = [(home, outer_node.body)]
    if home is not scope:
        regions += [(one, one.body) for one in _on_the_way(project, outer_node.body, scope)]
    known = called_so(project, [home], differing)
    known |= {name for each in ASKED for name in ((0, each), (ATTRIBUTE, each))}
    flows = flows_up_to(project, regions, inner_node)
    models = [node for one in project.functions.get("forward", []) for node in one.body]
    reads = project.all_read_by(scope, [*children(inner_node), *models]) | {GOAL}
    return bool((spread_of(flows, known) - known) & reads)


def called_so(
    project: ProjectFunctions, homes: Iterable[Function | None], names: Iterable[str]
) -> set[Name]:
    """Things that may be called so: variables in `homes` and of modules, attributes."""
    several, local = list(homes), {(owner, name) for name in names for owner in (0, ATTRIBUTE)}
    return local | {project.named(home, name) for home in several for _, name in local}


def scoped(root: ast.AST | None) -> Iterator[tuple[Function | None, ast.AST]]:
    """All nodes below `root`, each with the function that it is in."""
    todo: list[tuple[Function | None, ast.AST]] = [] if root is None else [(None, root)]
    while todo:
        scope, node = todo.pop()
        yield scope, node
        inside = node if isinstance(node, Function) else scope
        todo += [(inside, child) for child in children(node)]


def find_loop(
    loop: Loop, modules: Mapping[str, ast.Module]
) -> tuple[Function | None, ast.For | ast.AsyncFor | ast.While] | None:
    """The loop and the function that it is in."""
    for scope, node in scoped(modules.get(loop.filename)):
        if isinstance(node, ast.For | ast.AsyncFor | ast.While) and node.lineno == loop.line:
            return scope, node
    return None


def _on_the_way(
    project: ProjectFunctions, body: list[ast.stmt], scope: Function | None
) -> list[Function]:
    """The functions that `body` may call, and that may come to `scope`, which is one of them."""
    reached = project.reached(body)
    callers: dict[int, list[Function]] = {}
    for function in reached:
        for callee in project.calls_of(function):
            callers.setdefault(id(callee), []).append(function)
    found, todo = dict[int, Function](), [one for one in reached if one is scope]
    while todo:
        function = todo.pop()
        if id(function) not in found:
            found[id(function)] = function
            todo += callers.get(id(function), [])
    return list(found.values())


def flows_up_to(
    project: ProjectFunctions, regions: list[tuple[Function | None, list[ast.stmt]]], inner: ast.AST
) -> list[Flow]:
    """The flows of all regions up to `inner`, and of the functions that they may call."""
    flows, met = list[Flow](), list[ast.AST]()
    for scope, body in regions:
        holds = {id(node) for node in _around(body, inner)}
        for node in _before(body, inner):
            met.append(node)
            if isinstance(node, ast.If | ast.While | ast.Match):
                test = node.subject if isinstance(node, ast.Match) else node.test
                written = _written(project, scope, _but(node, inner))
                ends = {GOAL} if id(node) in holds else set[Name]()
                flows.append(Flow(project.read_by(scope, [test]), frozenset(written | ends)))
            flows += _flow(project, scope, node)
    ways = {id(scope) for scope, _ in regions}
    calls = [node for node in met if isinstance(node, ast.Call | ast.Attribute)]
    for function in project.reached(calls):
        result = frozenset({(id(function), RESULT)})
        flows.append(Flow(project.read_by(function, function.body), result))
        if id(function) not in ways:
            for node in walk(function):
                flows += _flow(project, function, node)
    return flows


def _before(body: list[ast.stmt], inner: ast.AST) -> Iterator[ast.AST]:
    """The nodes of this scope that stand before `inner`, if that is among them: else all."""
    todo: list[ast.AST] = [*reversed(body)]
    while todo:
        node = todo.pop()
        if node is inner:
            return
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            todo += reversed(children(node))


def _around(body: list[ast.stmt], inner: ast.AST) -> list[ast.AST]:
    """The statements of `body`, and those in them, that hold `inner`."""
    found = list[ast.AST]()
    step: ast.AST | None = next((one for one in body if _holds(one, inner)), None)
    while step is not None and step is not inner:
        found.append(step)
        step = next((one for one in children(step) if _holds(one, inner)), None)
    return found


def _holds(node: ast.AST, inner: ast.AST) -> bool:
    return any(one is inner for one in walk(node))


def _but(node: ast.AST, inner: ast.AST) -> list[ast.AST]:
    """The nodes of this scope within `node`, those of `inner` apart."""
    return [
        one
        for one in scope_nodes(child for child in children(node) if child is not inner)
        if not _holds(inner, one)
    ]


def _flow(project: ProjectFunctions, scope: Function | None, node: ast.AST) -> list[Flow]:
    """The flows of this node alone."""
    match node:
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            read = [node.value] if node.value is not None else []
            return [_to(project, scope, read, targets)]
        case ast.For() | ast.AsyncFor():
            return [_to(project, scope, [node.iter], [node.target])]
        case ast.withitem(optional_vars=ast.expr() as name):
            return [_to(project, scope, [node.context_expr], [name])]
        case ast.Call():
            return [_called(project, scope, node)]
        case _:
            return []


def _to(
    project: ProjectFunctions,
    scope: Function | None,
    read: Iterable[ast.AST],
    targets: Iterable[ast.AST],
) -> Flow:
    written = _written(project, scope, [node for target in targets for node in walk(target)])
    return Flow(project.read_by(scope, read), frozenset(written))


def _called(project: ProjectFunctions, scope: Function | None, call: ast.Call) -> Flow:
    """A call may write to the parameters of what it calls, or to that of which it is a method."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    functions = project.called([call])
    entered = {
        (id(function), arg.arg)
        for function in functions
        for arg in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    }
    if isinstance(call.func, ast.Attribute) and not functions:
        entered |= _owner(project, scope, call.func.value)
    return Flow(project.read_by(scope, arguments), frozenset(entered))


def _owner(project: ProjectFunctions, scope: Function | None, node: ast.AST) -> set[Name]:
    match node:
        case ast.Name() if node.id not in project.imported:
            return {project.named(scope, node.id)}
        case ast.Attribute() if node.attr not in project.imported:
            return {(ATTRIBUTE, node.attr)}
        case ast.Subscript():
            return _owner(project, scope, node.value)
        case _:
            return set()


def _written(
    project: ProjectFunctions, scope: Function | None, nodes: Iterable[ast.AST]
) -> set[Name]:
    """The names that these nodes, themselves alone, store to."""
    names = set[Name]()
    for node in nodes:
        match node:
            case ast.Name(ctx=ast.Store()):
                names.add(project.named(scope, node.id))
            case ast.Attribute(ctx=ast.Store()):
                names.add((ATTRIBUTE, node.attr))
            case ast.Subscript(ctx=ast.Store()):
                names |= _owner(project, scope, node.value)
            case _:
                pass
    return names


def spread_of(flows: list[Flow], known: set[Name]) -> set[Name]:
    """All names that values called as one of `known` may come to."""
    readers: dict[Name, list[Flow]] = {}
    for flow in flows:
        for name in flow.reads:
            readers.setdefault(name, []).append(flow)
    found, todo = set(known), list(known)
    while todo:
        for flow in readers.pop(todo.pop(), []):
            new = flow.writes - found
            found |= new
            todo += new
    return found
