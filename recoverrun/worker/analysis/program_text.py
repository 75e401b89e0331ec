"""The texts of a program as records: what is written where, and of which expression it comes.

Functions are found by their bare names (`rank_flow`), but what a call gives comes to the parameter
that it is given to, and what an object is given to the attribute that its constructor writes.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from recoverrun.worker.analysis.bare_names import CONSTRUCTORS, is_static, name_of
from recoverrun.worker.analysis.pure_statements import CHANGES
from recoverrun.worker.analysis.rank_flow import (
    ATTRIBUTE,
    RESULT,
    Function,
    Name,
    ProjectFunctions,
    scoped,
)
from recoverrun.worker.analysis.scopes import local_names
from recoverrun.worker.analysis.syntax_trees import children, walk

IN_PLACE = CHANGES | {"remove", "reverse", "rotate", "setdefault", "shuffle", "sort", "update"}
"""Methods and functions that leave an object otherwise than it was."""

Free = tuple[frozenset[str], frozenset[str], list[ast.expr]]
"""Names of variables and of attributes, and the defaults of parameters."""

Node = tuple[Function | None, ast.AST]
"""A node, and the function that it is in."""


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """One value that is written."""

    targets: tuple[Name, ...]
    scope: Function | None
    value: ast.AST
    tests: tuple[ast.expr, ...] = ()  # that decide whether it is
    turns: bool = False  # it is written in each turn of a loop that was asked for
    moves: bool = False  # in place: it is another one afterwards


@dataclass(slots=True)
class _Spot:
    """The place of a statement."""

    scope: Function | None
    owner: ast.ClassDef | None
    tests: tuple[ast.expr, ...]
    turns: bool


@dataclass(slots=True)
class ProgramText:
    """All modules; `regions` are loops."""

    modules: Mapping[str, ast.Module]
    regions: Sequence[ast.AST]
    project: ProjectFunctions = field(default_factory=ProjectFunctions)
    functions: dict[int, Function] = field(default_factory=dict)
    records: list[Assignment] = field(default_factory=list)
    classes: dict[str, list[ast.ClassDef]] = field(default_factory=dict)
    attributes: dict[tuple[str, str], list[Assignment]] = field(default_factory=dict)
    """The records of constructors, by class and attribute."""
    written_later: dict[str, list[Assignment]] = field(default_factory=dict)  # by attribute
    calls: dict[str, list[Node]] = field(default_factory=dict)  # arguments, by name
    stored: set[str] = field(default_factory=set)  # attributes
    _free: dict[int, Free] = field(default_factory=dict)
    _turning: set[int] = field(default_factory=set)  # functions, and loops, of `regions`

    def __post_init__(self) -> None:
        for tree in self.modules.values():
            self.project.add(tree)
            for node in walk(tree):
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, []).append(node)
        self.functions = {id(f): f for some in self.project.functions.values() for f in some}
        bodies = [child for loop in self.regions for child in children(loop)]
        self._turning = {id(loop) for loop in self.regions}
        self._turning |= {id(function) for function in self.project.reached(bodies)}
        for tree in self.modules.values():
            self._visit(tree, _Spot(None, None, (), turns=False))

    def functions_at(self, filename: str, line: int, name: str) -> list[Node]:
        """The functions of that `name` whose code begins at this line."""
        found: list[Node] = []
        for scope, node in scoped(self.modules.get(filename)):
            if isinstance(node, ast.Lambda) and name == "<lambda>" and node.lineno == line:
                found.append((scope, node))
            elif isinstance(node, Function) and node.name == name:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if line in (first, node.lineno):
                    found.append((scope, node))
        return found

    def free_in(self, function: ast.AST) -> Free:
        """The variables around a function that it reads, attributes, and defaults of parameters."""
        if id(function) not in self._free:
            own, names, members, defaults = local_names(function), set(), set(), []
            for one in walk(function):
                match one:
                    case ast.Name(id=name, ctx=ast.Load()) if name not in own:
                        names.add(name)
                    case ast.Attribute(attr=name, ctx=ast.Load()):
                        members.add(name)
                    case ast.arguments():
                        defaults += [*one.defaults, *filter(None, one.kw_defaults)]
                    case _:
                        pass
            self._free[id(function)] = frozenset(names), frozenset(members), defaults
        return self._free[id(function)]

    # ------------------------------------------------------------------------- the records

    def _visit(self, node: ast.AST, spot: _Spot) -> None:
        turns = spot.turns or id(node) in self._turning
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if spot.owner is None:
                    self._write([self.project.named(spot.scope, node.name)], node, spot)
                spot = _Spot(node, spot.owner, (), turns)
            case ast.ClassDef():
                spot = _Spot(None, node, (), turns=False)
            case ast.If():
                spot = _Spot(spot.scope, spot.owner, (*spot.tests, node.test), turns)
            case _:
                spot = _Spot(spot.scope, spot.owner, spot.tests, turns)
        self._record(node, spot)
        for child in children(node):
            self._visit(child, spot)

    def _record(self, node: ast.AST, spot: _Spot) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, spot)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, spot)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, value, spot)
            case ast.AugAssign(target=target, value=value, op=op):
                self._assign(target, ast.BinOp(target, op, value), spot, moves=spot.turns)
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                self._assign(target, value, spot)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._assign(target, value, spot)
            case ast.Return(value=ast.expr() as value) | ast.Yield(value=ast.expr() as value):
                self._write([(id(spot.scope), RESULT)], value, spot)
            case ast.YieldFrom(value=value):
                self._write([(id(spot.scope), RESULT)], value, spot)
            case ast.Call():
                self._call(node, spot)
            case _:
                pass

    def _assign(
        self, target: ast.expr, value: ast.expr, spot: _Spot, *, moves: bool = False
    ) -> None:
        match target, value:
            case ((ast.Tuple() | ast.List()), (ast.Tuple() | ast.List())) if len(
                target.elts
            ) == len(value.elts):
                for part, one in zip(target.elts, value.elts, strict=True):
                    self._assign(part, one, spot, moves=moves)
            case ((ast.Tuple() | ast.List()), _):
                for part in target.elts:
                    self._assign(part, value, spot, moves=moves)
            case ast.Starred(value=part), _:
                self._assign(part, value, spot, moves=moves)
            case ast.Name(id=name), _:
                self._write([self.project.named(spot.scope, name)], value, spot, moves=moves)
            case ast.Attribute(attr=name), _:
                record = self._write([(ATTRIBUTE, name)], value, spot, moves=moves)
                self._stored(name, record, spot)
            case ast.Subscript(value=part, slice=key), _:
                inner = ast.Tuple([key, value], ast.Load())
                self._write(self._owners(part, spot), inner, spot, moves=moves)
            case _:
                pass

    def _stored(self, name: str, record: Assignment, spot: _Spot) -> None:
        self.stored.add(name)
        within = spot.scope.name if spot.scope is not None else ""
        if spot.owner is not None and within in CONSTRUCTORS - {"__call__"}:
            self.attributes.setdefault((spot.owner.name, name), []).append(record)
        else:
            self.written_later.setdefault(name, []).append(record)

    def _write(
        self, targets: Iterable[Name], value: ast.AST, spot: _Spot, *, moves: bool = False
    ) -> Assignment:
        record = Assignment(tuple(targets), spot.scope, value, spot.tests, spot.turns, moves)
        self.records.append(record)
        return record

    def _owners(self, node: ast.AST, spot: _Spot) -> list[Name]:
        match node:
            case ast.Name(id=name) if name not in self.project.imported:
                return [self.project.named(spot.scope, name)]
            case ast.Attribute(value=owner, attr=name):
                imported = isinstance(owner, ast.Name) and owner.id in self.project.imported
                return [] if imported else [(ATTRIBUTE, name)]
            case ast.Subscript(value=value):
                return self._owners(value, spot)
            case _:
                return []

    # ------------------------------------------------------------------------- calls

    def _call(self, call: ast.Call, spot: _Spot) -> None:
        name, given = name_of(call.func), [*call.args, *(one.value for one in call.keywords)]
        self.calls.setdefault(name, []).extend((spot.scope, one) for one in given)
        functions = list(self._called(call, name, spot))
        for function in functions:
            self._bind(call, function, spot)
        plain = _Spot(spot.scope, spot.owner, (), spot.turns)
        if name in IN_PLACE and spot.turns:
            for changed in [call.func.value] if isinstance(call.func, ast.Attribute) else given:
                if owners := self._owners(changed, spot):
                    self._write(owners, changed, plain, moves=True)
        if isinstance(call.func, ast.Attribute) and not functions and given:
            owners = self._owners(call.func.value, spot)
            if owners:
                self._write(owners, ast.Tuple(given, ast.Load()), plain)

    def _called(self, call: ast.Call, name: str, spot: _Spot) -> Iterator[Function]:
        if name in CONSTRUCTORS:
            kinds = [] if spot.owner is None else [name_of(base) for base in spot.owner.bases]
            yield from (one for kind in kinds for one in self.constructors(kind))
        elif name in self.classes:
            yield from self.constructors(name)
        else:
            yield from self.project.functions.get(name, ())

    def constructors(self, kind: str, met: Collection[str] = ()) -> list[Function]:
        """Those of a class, or of the classes that it comes of."""
        own = [f for f in self.methods(kind) if f.name in CONSTRUCTORS - {"__call__"}]
        if own or kind in met:
            return own
        bases = [name_of(base) for one in self.classes.get(kind, ()) for base in one.bases]
        return [f for base in bases for f in self.constructors(base, {*met, kind})]

    def methods(self, kind: str) -> list[Function]:
        return [
            one
            for owner in self.classes.get(kind, ())
            for one in owner.body
            if isinstance(one, Function)
        ]

    def _bind(self, call: ast.Call, function: Function, spot: _Spot) -> None:
        """Let what the call gives come to the parameters of `function`."""
        named = function.args
        places = [one.arg for one in (*named.posonlyargs, *named.args)]
        if places[:1] in (["self"], ["cls"]) and not is_static(function):
            places = places[1:]
        rest = [one.arg for one in (named.vararg, named.kwarg) if one is not None]
        every = [*places, *(one.arg for one in named.kwonlyargs)]
        plain = _Spot(spot.scope, spot.owner, (), spot.turns)
        for number, one in enumerate(call.args):
            if isinstance(one, ast.Starred):
                taken = [*places[number:], *rest]
            else:
                taken = places[number : number + 1] or rest
            self._write([(id(function), name) for name in taken], one, plain)
        for keyword in call.keywords:
            taken = every if keyword.arg is None else [keyword.arg]
            if keyword.arg is not None and keyword.arg not in every:
                taken = rest
            self._write([(id(function), name) for name in taken], keyword.value, plain)
