"""The calls, aliases, arguments and results of one module, told to a `Reachability`.

Every value is followed to each name that it may go by: assignments, loops and `with` bind it,
parameters receive it, `return` hands it on. What a call returns may also be, or hold, whatever it
was given (`partial(step)`, `compile(step)`), and a function that is passed on may be called with
what else is passed (`Thread(target=run, args=(step,))`).
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from recoverrun.worker.analysis.bare_names import (
    BACKWARD,
    CONSTRUCTORS,
    RESULT,
    Function,
    is_static,
    name_of,
)
from recoverrun.worker.analysis.reachability import ANY, Parameters, Reachability, slot
from recoverrun.worker.analysis.scoped_names import (
    OF_ANY,
    OF_OBJECT,
    Scope,
    Surroundings,
    Visit,
    visits,
)
from recoverrun.worker.analysis.scopes import import_name

CallSites = tuple[set[str], set[str]]
"""Names of what is called, and of what is passed to a call."""


@dataclass(frozen=True, slots=True)
class ProjectNames:
    """The names by which modules of the project are told from others."""

    modules: frozenset[str]  # first parts of their names
    functions: frozenset[str]  # their functions, where nothing else goes by that name


Value = tuple[str, bool]
"""A name that an expression may stand for, and True if a call is in between that was given it."""


class CallFacts:
    """Goes once over a module."""

    def __init__(self, tree: ast.Module, module: str, project: ProjectNames | None = None) -> None:
        self._project = project
        self._attributes: set[str] = set()  # of what may be a module
        self._visits = visits(tree, module)
        self._inside = {id(visit.node): visit.inside for visit in self._visits}

    def sites(self) -> Iterator[tuple[ast.Call, Surroundings, CallSites]]:
        """Yield the calls, with what each calls and passes."""
        for visit in self._visits:
            if isinstance(visit.node, ast.Call):
                calls = set(self._callees(visit.node, visit.around))
                yield visit.node, visit.around, (calls, self._passed(visit.node, visit.around))

    def tell(self, reach: Reachability) -> CallSites:
        """Tell all that the module says. Returns the call sites in its loops."""
        in_loops: CallSites = set(), set()
        for node, around, (calls, passed) in self.sites():
            if around.in_loop:
                in_loops[0].update(calls)
                in_loops[1].update(passed)
            for callee in calls:
                reach.add_called(callee)
            for owner in around.owners:
                for name in passed:
                    reach.add_passing(owner, name)
                for callee in calls:
                    reach.add_call(owner, callee)
            self._arguments(node, calls, around, reach)
        for visit in self._visits:
            if (told := _TELLING.get(type(visit.node))) is not None:
                told(self, visit, reach)
        for name in self._attributes:
            reach.add_alias(OF_ANY + name, name)
            reach.add_alias(OF_ANY + name, OF_OBJECT + name)
        return in_loops

    def known(self, node: ast.AST, scope: Scope) -> str:
        """Return what an expression goes by: `b` for `a.b`, `f()` for `f(x)`, "" for none."""
        match node:
            case ast.Name(id=name) if name in BACKWARD:
                return name  # also one that is given: `def step(loss, backward)`
            case ast.Name(id=name):
                return "" if self._is_foreign(node, scope) else scope.known(name)
            case ast.Attribute(attr=name):
                return self._attribute(node, name, scope)
            case ast.Subscript(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                return self.known(value, scope)
            case ast.Call(func=function):
                callee = self.known(function, scope)
                return callee and callee + RESULT
            case _:
                return ""

    def _attribute(self, node: ast.Attribute, name: str, scope: Scope) -> str:
        if name in BACKWARD:
            return name
        if self._is_foreign(node, scope):
            return ""
        match node.value:
            case ast.Name(id=owner) if scope.is_instance(owner):
                return OF_OBJECT + name
            case ast.Call(func=ast.Name(id="super")):
                return OF_OBJECT + name
            case _:
                self._attributes.add(name)
                return OF_ANY + name

    def _is_foreign(self, node: ast.AST, scope: Scope) -> bool:
        """True if a name is imported from a module that is none of the project's, or is in one."""
        while isinstance(node, ast.Attribute):
            node = node.value
        if self._project is None or not isinstance(node, ast.Name):
            return False
        home = scope.home(node.id)
        if home is None or node.id in home.assigned or node.id in home.defined:
            return False
        source = home.imported.get(node.id, "")
        return bool(source) and source.partition(".")[0] not in self._project.modules

    def _is_followed(self, function: ast.AST, scope: Scope) -> bool:
        """True if a call surely is one of a function that is known, and so is what it returns."""
        if not isinstance(function, ast.Name) or (home := scope.home(function.id)) is None:
            return False
        if function.id in home.assigned:
            return False
        if function.id in home.imported:
            functions = () if self._project is None else self._project.functions
            return function.id in functions and not self._is_foreign(function, scope)
        return function.id in home.defined

    def _callees(self, node: ast.Call, around: Surroundings) -> list[str]:
        match node.func, around.class_around:
            case ast.Attribute(
                value=ast.Call(func=ast.Name(id="super")), attr=method
            ), ast.ClassDef(bases=bases) if method in CONSTRUCTORS:
                end = RESULT if method == "__call__" else ""
                names = [self.known(base, around.scope) for base in bases]
                return [name + end for name in names if name]
        name = self.known(node.func, around.scope)
        return [name] if name else []

    def _passed(self, node: ast.Call, around: Surroundings) -> set[str]:
        return {
            self.known(value, around.scope)
            for _, value in _given(node)
            if isinstance(value, ast.Name | ast.Attribute)
        }

    def _values(self, node: ast.AST, around: Surroundings) -> Iterator[Value]:
        """Yield what the value of an expression may be, or be made of."""
        match node:
            case ast.Name() | ast.Attribute():
                yield self.known(node, around.scope), False
            case ast.Lambda():
                yield self._inside[id(node)].owners[-1], False
            case ast.Call():
                if name := self.known(node, around.scope):
                    yield name, False
                if self._is_followed(node.func, around.scope):
                    return
                for _, part in _given(node):
                    for name, _ in self._values(part, around):
                        if name not in BACKWARD:
                            yield name, True
            case _:
                for part in _alternatives(node):
                    yield from self._values(part, around)

    def _stand(self, name: str, value: ast.AST, around: Surroundings, reach: Reachability) -> None:
        for source, wrapped in self._values(value, around):
            reach.add_alias(name, source, wrapped)

    def _assign(
        self, target: ast.AST, value: ast.AST, around: Surroundings, reach: Reachability
    ) -> None:
        match target, value:
            case ast.Tuple(elts=targets) | ast.List(elts=targets), (
                ast.Tuple(elts=values) | ast.List(elts=values)
            ) if len(targets) == len(values) and not _starred(targets, values):
                for one, other in zip(targets, values, strict=True):
                    self._assign(one, other, around, reach)
            case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), _):
                for one in targets:
                    self._assign(one, value, around, reach)
            case _:
                for name in self._written(target, around.scope):
                    self._stand(name, value, around, reach)

    def _written(self, target: ast.AST, scope: Scope) -> list[str]:
        """Return what a target of an assignment goes by where it is read."""
        known = self.known(target, scope)
        if known.startswith(OF_ANY) and not known.endswith(RESULT):
            return [known[1:], OF_OBJECT + known[1:]]
        return [known] if known else []

    def _arguments(
        self, node: ast.Call, callees: set[str], around: Surroundings, reach: Reachability
    ) -> None:
        given = [(place, value, [*self._values(value, around)]) for place, value in _given(node)]
        for place, _, values in given:
            for source, wrapped in values:
                for callee in callees:
                    reach.add_alias(slot(callee, place), source, wrapped)
                if place != ANY and isinstance(place, str):  # it may become an attribute
                    reach.add_alias(OF_OBJECT + place, source, True)
        if len(given) == 1 or self._is_followed(node.func, around.scope):
            return
        for _, value, _ in given:
            if function := self._function_named(value, around.scope):
                for _, other, values in given:
                    for source, wrapped in values if other is not value else ():
                        reach.add_alias(slot(function, ANY), source, wrapped)

    def _function_named(self, node: ast.expr, scope: Scope) -> str:
        """Return what a function of the project goes by that is given by its name, else ""."""
        if not isinstance(node, ast.Name) or (home := scope.home(node.id)) is None:
            return ""
        named = node.id in home.defined or node.id in home.imported
        return self.known(node, scope) if named else ""

    def _function(self, visit: Visit, reach: Reachability) -> None:
        node, around = visit.node, visit.around
        assert isinstance(node, Function | ast.Lambda), f"{node} is no function"
        name = visit.inside.owners[-1]
        if not name.endswith(RESULT):  # an instance is no function
            reach.add_function(name)
        bound = isinstance(node, Function) and around.in_class and not is_static(node)
        scope = visit.inside.scope
        reach.add_parameters(name, _parameters(node.args, scope, 1 if bound else 0))
        for arg, default in _defaults(node.args):
            self._stand(scope.known(arg), default, around, reach)
        if isinstance(node, ast.Lambda):
            self._stand(name + RESULT, node.body, visit.inside, reach)
            return
        positional = [*node.args.posonlyargs, *node.args.args]
        if bound and positional:
            of_class = any(name_of(one) == "classmethod" for one in node.decorator_list)
            itself = around.class_name + ("" if of_class else RESULT)
            reach.add_alias(scope.known(positional[0].arg), itself)
        self._decorated(node, name, around, reach)

    def _decorated(
        self, node: Function | ast.ClassDef, name: str, around: Surroundings, reach: Reachability
    ) -> None:
        for decorator in node.decorator_list:
            if name_of(decorator).endswith("property"):
                reach.add_alias(name, name + RESULT)
            elif callee := self.known(decorator, around.scope):
                reach.add_called(callee)
                reach.add_alias(slot(callee, 0), name)
                reach.add_alias(name, callee + RESULT)

    def _class(self, visit: Visit, reach: Reachability) -> None:
        node, around = visit.node, visit.around
        assert isinstance(node, ast.ClassDef), f"{node} is no class"
        for base in node.bases:
            if name := self.known(base, around.scope):
                reach.add_alias(visit.inside.class_name, name)
        fields = [
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        if fields:  # of a dataclass: what its constructor is given are attributes
            keywords = tuple((name, OF_OBJECT + name) for name in fields)
            places = tuple(known for _, known in keywords)
            reach.add_parameters(visit.inside.class_name, Parameters(places, keywords))
        self._decorated(node, visit.inside.class_name, around, reach)
        for name in visit.inside.scope.assigned:  # to what is around it, maybe: `step = step`
            reach.add_alias(OF_OBJECT + name, around.scope.known(name))

    def _assignment(self, visit: Visit, reach: Reachability) -> None:
        match visit.node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, visit.around, reach)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.AugAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
                | ast.withitem(optional_vars=ast.expr() as target, context_expr=value)
            ):
                self._assign(target, value, visit.around, reach)
            case _:
                pass

    def _result(self, visit: Visit, reach: Reachability) -> None:
        assert isinstance(visit.node, ast.Return | ast.Yield | ast.YieldFrom), f"{visit.node}"
        if visit.node.value is not None and visit.around.owners:
            self._stand(visit.around.owners[-1] + RESULT, visit.node.value, visit.around, reach)

    def _imports(self, visit: Visit, reach: Reachability) -> None:
        assert isinstance(visit.node, ast.Import | ast.ImportFrom), f"{visit.node} is no import"
        for alias in visit.node.names:
            name = visit.around.scope.known(import_name(alias))
            if name != alias.name:
                reach.add_alias(name, alias.name)


_TELLING: dict[type[ast.AST], Callable[[CallFacts, Visit, Reachability], None]] = {
    ast.FunctionDef: CallFacts._function,
    ast.AsyncFunctionDef: CallFacts._function,
    ast.Lambda: CallFacts._function,
    ast.ClassDef: CallFacts._class,
    ast.Return: CallFacts._result,
    ast.Yield: CallFacts._result,
    ast.YieldFrom: CallFacts._result,
    ast.Import: CallFacts._imports,
    ast.ImportFrom: CallFacts._imports,
    **dict.fromkeys(
        (
            ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.withitem,
        ),
        CallFacts._assignment,
    ),
}  # fmt: skip


def _given(node: ast.Call) -> Iterator[tuple[int | str, ast.expr]]:
    """Yield the arguments of a call with their places or keywords; behind a `*` it may be any."""
    unpacked = False
    for at, value in enumerate(node.args):
        unpacked |= isinstance(value, ast.Starred)
        yield ANY if unpacked else at, value
    for keyword in node.keywords:
        yield keyword.arg or ANY, keyword.value


def _alternatives(node: ast.AST) -> Iterable[ast.expr]:
    """Return the expressions of which another one is, or holds, one."""
    match node:
        case ast.IfExp(body=one, orelse=other):
            return one, other
        case ast.BoolOp(values=values) | ast.Dict(values=values):
            return values
        case ast.Tuple(elts=values) | ast.List(elts=values) | ast.Set(elts=values):
            return values
        case (
            ast.BinOp(left=ast.List() as one, right=other)
            | ast.BinOp(left=one, right=ast.List() as other)
        ):
            return one, other
        case ast.Await(value=value) | ast.Starred(value=value) | ast.NamedExpr(value=value):
            return (value,)
        case _:
            return ()


def _starred(*expressions: Iterable[ast.expr]) -> bool:
    return any(isinstance(one, ast.Starred) for each in expressions for one in each)


def _parameters(arguments: ast.arguments, scope: Scope, bound: int) -> Parameters:
    places = [scope.known(arg.arg) for arg in (*arguments.posonlyargs, *arguments.args)]
    keywords = [(arg.arg, scope.known(arg.arg)) for arg in (*arguments.args, *arguments.kwonlyargs)]
    ends = [arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
    rest = tuple(scope.known(arg.arg) for arg in ends)
    return Parameters(tuple(places[bound:]), tuple(keywords), rest)


def _defaults(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    first = len(positional) - len(arguments.defaults)
    for arg, default in zip(positional[first:], arguments.defaults, strict=True):
        yield arg.arg, default
    for arg, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if given is not None:
            yield arg.arg, given
