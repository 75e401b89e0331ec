"""Which names a block of statements binds, and which it may read before it has bound them.

`live_in` errs towards more names: a name counts as read if some path may read it before it is
surely written, and a nested function reads all its free names where it is defined. Two assumptions
make it useful: a `with` block other than `contextlib.suppress` does not swallow exceptions, and
names are not reached by means other than the statements (frames, `__dict__` of the module).
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from recoverrun.worker.analysis.syntax_trees import children, walk

COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
NESTED = (*FUNCTION, ast.ClassDef, *COMPREHENSION)
# These read names that they do not mention.
DYNAMIC = frozenset({"locals", "vars", "dir", "eval", "exec"})


@dataclass(frozen=True, slots=True)
class Flow:
    """What a block does to the names of its scope."""

    assigned: frozenset[str]
    live_in: frozenset[str]


def flow(block: Sequence[ast.stmt]) -> Flow:
    """Analyse a block."""
    assigned = bound_names(block)
    reads = _Reads()
    reads.block(block, set())
    if any(_is_dynamic(node) for statement in block for node in walk(statement)):
        reads.live |= assigned
    return Flow(frozenset(assigned), frozenset(reads.live))


def own_nodes(roots: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes that belong to the scope of `roots`.

    A nested function, class or comprehension is yielded, and what of it is evaluated outside of it
    (decorators, defaults, bases, the first iterable), but not what is inside.
    """
    todo = list(roots)
    while todo:
        node = todo.pop()
        yield node
        todo.extend(outside_of(node) if isinstance(node, NESTED) else children(node))


def outside_of(node: ast.AST) -> list[ast.expr]:
    """Return the parts of a nested scope that are evaluated in the scope around it, in order."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            annotations = [arg.annotation for arg in _parameters(node.args)] + [node.returns]
            parts = [*node.decorator_list, *_defaults(node.args), *annotations]
            return [part for part in parts if part is not None]
        case ast.Lambda():
            return _defaults(node.args)
        case ast.ClassDef():
            keywords = [keyword.value for keyword in node.keywords]
            return [*node.decorator_list, *node.bases, *keywords]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return [node.generators[0].iter]
        case _:
            return []


def inside_of(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a nested scope that are evaluated within it."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return list(node.body)
        case ast.Lambda():
            return [node.body]
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            return [node.elt, *_generator_parts(node.generators)]
        case ast.DictComp():
            return [node.key, node.value, *_generator_parts(node.generators)]
        case _:
            return []


def bound_names(roots: Iterable[ast.AST]) -> set[str]:
    """Return the names that executing `roots` may bind or delete in their own scope.

    Those that a nested function binds from within, by `nonlocal` or `global`, are among them.
    """
    nodes = list(own_nodes(roots))
    return own_names(nodes).union(*(_writes_outside(node) for node in nodes))


def own_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that the nodes of one scope bind or delete themselves."""
    names: set[str] = set()
    for node in nodes:
        names |= binds(node)
        if isinstance(node, COMPREHENSION):
            names |= _walrus_names(node)
    return names


def deleted_names(roots: Iterable[ast.AST]) -> set[str]:
    """Return the names that executing `roots` may leave unbound."""
    names: set[str] = set()
    for node in own_nodes(roots):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def free_reads(node: ast.AST) -> set[str]:
    """Return the names of the scope around it that the inside of a nested scope reads."""
    inside = list(own_nodes(inside_of(node)))
    reads = {n.id for n in inside if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)}
    reads |= {
        n.target.id
        for n in inside
        if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
    }
    for nested in inside:
        if isinstance(nested, NESTED):
            reads |= free_reads(nested)
    # The methods of a class do not see its names, and its own statements see those around it
    # until they bind them.
    return reads if isinstance(node, ast.ClassDef) else reads - local_names(node)


def target_names(target: ast.AST) -> frozenset[str]:
    """Return the names that an assignment to `target` binds."""
    return frozenset(bound_names([target]))


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    ends = [arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *ends]


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *(part for part in arguments.kw_defaults if part is not None)]


def _generator_parts(generators: Sequence[ast.comprehension]) -> list[ast.AST]:
    parts: list[ast.AST] = [node for each in generators for node in (each.target, *each.ifs)]
    return [*parts, *(each.iter for each in generators[1:])]


def import_name(alias: ast.alias) -> str:
    """Return the name that an import binds: `a` for `import a.b`."""
    return alias.asname or alias.name.split(".")[0]


def binds(node: ast.AST) -> set[str]:
    """Return the names that this node alone, not those in it, binds or deletes."""
    match node:
        case ast.Name(ctx=ast.Store() | ast.Del()):
            return {node.id}
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return {import_name(alias) for alias in node.names}
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
            return {node.name} if node.name else set()
        case ast.MatchMapping():
            return {node.rest} if node.rest else set()
        case _:
            return set()


def _walrus_names(comprehension: ast.AST) -> set[str]:
    """`:=` in a comprehension binds in the function around it, through any number of them."""
    names: set[str] = set()
    for node in own_nodes(inside_of(comprehension)):
        if isinstance(node, ast.NamedExpr):
            names.add(node.target.id)
        elif isinstance(node, COMPREHENSION):
            names |= _walrus_names(node)
    return names


def declared_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that the nodes of one scope declare to be those of another."""
    return {
        name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names
    }


def local_names(node: ast.AST) -> set[str]:
    """Return the names of a nested function or comprehension that are its own."""
    inside = list(own_nodes(inside_of(node)))
    if isinstance(node, COMPREHENSION):
        return {name for each in node.generators for name in target_names(each.target)}
    if isinstance(node, FUNCTION):
        names = {arg.arg for arg in _parameters(node.args)} | own_names(inside)
        return names - declared_names(inside)
    return set()  # The names of a class are nobody else's, not even its methods'.


def _writes_outside(node: ast.AST) -> set[str]:
    """Return the names that a nested function or class binds in scopes around it."""
    if not isinstance(node, (*FUNCTION, ast.ClassDef)):
        return set()
    inside = list(own_nodes(inside_of(node)))
    deeper = set().union(*(_writes_outside(nested) for nested in inside)) - local_names(node)
    return own_names(inside) & declared_names(inside) | deeper


def _is_dynamic(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DYNAMIC
    )


def _meet(*paths: set[str] | None) -> set[str] | None:
    """Return what is surely written where paths join; None if none of them gets there."""
    open_paths = [path for path in paths if path is not None]
    return set.intersection(*open_paths) if open_paths else None


def _swallows(item: ast.withitem) -> bool:
    call = item.context_expr
    if not isinstance(call, ast.Call):
        return False
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name == "suppress"


def _is_irrefutable(case: ast.match_case) -> bool:
    pattern = case.pattern
    return case.guard is None and isinstance(pattern, ast.MatchAs) and pattern.pattern is None


class _Reads:
    """Walks a block in the order of execution.

    `written` holds the names that are surely written at a point; statements change it in place.
    A statement after which the next one is not reached returns None instead.
    """

    def __init__(self) -> None:
        self.live: set[str] = set()

    def block(self, statements: Sequence[ast.stmt], written: set[str]) -> set[str] | None:
        current: set[str] | None = set(written)
        for statement in statements:
            if current is None:
                return None
            current = self._statement(statement, current)
        return current

    def _read(self, names: Iterable[str], written: set[str]) -> None:
        self.live.update(name for name in names if name not in written)

    def _statement(self, node: ast.stmt, written: set[str]) -> set[str] | None:
        match node:
            case ast.If():
                self._expression(node.test, written)
                return _meet(self.block(node.body, written), self.block(node.orelse, written))
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, written)
            case ast.With() | ast.AsyncWith():
                return self._with(node, written)
            case ast.Try() | ast.TryStar():
                return self._try(node, written)
            case ast.Match():
                return self._match(node, written)
            case ast.Return() | ast.Raise():
                for child in children(node):
                    self._expression(child, written)
                return None
            case ast.Break() | ast.Continue():
                return None
            case _:
                self._simple(node, written)
                return written

    def _simple(self, node: ast.stmt, written: set[str]) -> None:
        match node:
            case ast.Assign():
                self._expression(node.value, written)
                for target in node.targets:
                    self._store(target, written)
            case ast.AugAssign():
                if isinstance(node.target, ast.Name):
                    self._read([node.target.id], written)
                    self._expression(node.value, written)
                    written.add(node.target.id)
                else:
                    self._expression(node.target, written)
                    self._expression(node.value, written)
            case ast.AnnAssign():
                if node.value is not None:
                    self._expression(node.value, written)
                    self._store(node.target, written)
            case ast.Delete():
                for target in node.targets:
                    self._expression(target, written)
                written -= deleted_names([node])
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._expression(node, written)
                written.add(node.name)
            case ast.Import() | ast.ImportFrom():
                written.update(import_name(alias) for alias in node.names)
            case ast.Assert():
                self._expression(node.test, written)
                if node.msg is not None:
                    self._expression(node.msg, set(written))
            case _:
                for child in children(node):
                    self._expression(child, written)

    def _store(self, target: ast.expr, written: set[str]) -> None:
        match target:
            case ast.Name():
                written.add(target.id)
            case ast.Tuple() | ast.List():
                for element in target.elts:
                    self._store(element, written)
            case ast.Starred():
                self._store(target.value, written)
            case _:
                self._expression(target, written)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, written: set[str]) -> set[str]:
        self._expression(node.test if isinstance(node, ast.While) else node.iter, written)
        inside = set(written)
        if not isinstance(node, ast.While):
            self._store(node.target, inside)
        self.block(node.body, inside)
        # The body may run zero times, or end by `break`: only what was written before is sure.
        after = written - deleted_names(node.body)
        self.block(node.orelse, after)
        return after - deleted_names(node.orelse)

    def _with(self, node: ast.With | ast.AsyncWith, written: set[str]) -> set[str] | None:
        before = written - deleted_names(node.body)
        for item in node.items:
            self._expression(item.context_expr, written)
            if item.optional_vars is not None:
                self._store(item.optional_vars, written)
        after = self.block(node.body, written)
        swallows = any(_swallows(item) for item in node.items)
        return _meet(before, after) if swallows else after

    def _try(self, node: ast.Try | ast.TryStar, written: set[str]) -> set[str] | None:
        # An error may strike before the first statement or after the last.
        struck = written - deleted_names(node.body)
        done = self.block(node.body, written)
        if done is not None:
            done = self.block(node.orelse, done)
        handled = [self._handler(handler, struck) for handler in node.handlers]
        after = _meet(done, *handled)
        if not node.finalbody:
            return after
        anywhere = struck - deleted_names([*node.handlers, *node.orelse])
        if self.block(node.finalbody, anywhere) is None or after is None:
            return None
        return self.block(node.finalbody, after)

    def _handler(self, node: ast.ExceptHandler, struck: set[str]) -> set[str] | None:
        written = set(struck)
        if node.type is not None:
            self._expression(node.type, written)
        if node.name is None:
            return self.block(node.body, written)
        after = self.block(node.body, written | {node.name})
        return None if after is None else after - {node.name}

    def _match(self, node: ast.Match, written: set[str]) -> set[str] | None:
        self._expression(node.subject, written)
        paths: list[set[str] | None] = []
        for case in node.cases:
            inside = set(written)
            self._expression(case.pattern, inside)
            inside |= bound_names([case.pattern])
            if case.guard is not None:
                self._expression(case.guard, inside)
            paths.append(self.block(case.body, inside))
        if not any(_is_irrefutable(case) for case in node.cases):
            paths.append(written)
        return _meet(*paths)

    def _expression(self, node: ast.AST, written: set[str]) -> None:
        match node:
            case ast.Name():
                if not isinstance(node.ctx, ast.Store):
                    self._read([node.id], written)
            case ast.NamedExpr():
                self._expression(node.value, written)
                written.add(node.target.id)
            case ast.BoolOp():
                self._expression(node.values[0], written)
                self._unsure(node.values[1:], written)
            case ast.Compare():
                self._expression(node.left, written)
                self._expression(node.comparators[0], written)
                self._unsure(node.comparators[1:], written)
            case ast.IfExp():
                self._expression(node.test, written)
                self._unsure([node.body], written)
                self._unsure([node.orelse], written)
            case ast.Dict():
                for key, value in zip(node.keys, node.values, strict=True):
                    if key is not None:
                        self._expression(key, written)
                    self._expression(value, written)
            case _ if isinstance(node, NESTED):
                for part in outside_of(node):
                    self._expression(part, written)
                self._read(free_reads(node), written)
            case _:
                for child in children(node):
                    self._expression(child, written)

    def _unsure(self, nodes: Iterable[ast.expr], written: set[str]) -> None:
        """Read expressions that may be skipped: what they write is not sure."""
        inside = set(written)
        for node in nodes:
            self._expression(node, inside)
