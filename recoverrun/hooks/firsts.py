"""What a script does on rank 0 alone, such as saving, and who does it once rank 0 is lost.

    if rank == 0:                  if __recoverrun__.first(ID, True, rank == 0, rank):
        torch.save(...)     ->         with __recoverrun__.leading(ID):
                                           torch.save(...)

    if not is_main_process:        if __recoverrun__.first(ID, False, not is_main_process):
        return              ->         return
    log(...)                       with __recoverrun__.leading(ID):
                                       log(...)

As long as rank 0 lives nothing is different. Then a survivor, its deputy, answers as rank 0 would.
It draws no numbers of its own in there, and an error does not end it: that of a call that stands by
itself, as to a log that only rank 0 had opened, ends this call, another what is left of the block.

Only that is handed on which nobody answers to: no `else`, no collective call, no backward.
"""

import ast
import copy
from collections.abc import Sequence
from typing import TypeGuard

from recoverrun.hooks.callgraph import BACKWARD, name_of
from recoverrun.hooks.script import RUNTIME_NAME, Lone

FLAGS = frozenset(
    {
        "is_main_process", "is_local_main_process", "is_master", "is_master_process",
        "master_process", "is_chief", "is_rank_zero", "is_rank0", "is_global_zero",
    }
)  # fmt: skip

TALKS = frozenset(
    {
        "broadcast", "broadcast_object_list", "all_reduce", "reduce", "all_gather", "gather",
        "all_gather_object", "gather_object", "scatter", "scatter_object_list", "barrier",
        "send", "recv", "isend", "irecv", "batch_isend_irecv", "wait_for_everyone",
        "init_process_group", "destroy_process_group", *BACKWARD,
    }
)  # fmt: skip

NUMBERS = ("process_index", "gpu_id", "gpu", "device_id")
"""Names under which scripts keep a rank, or the number of their device."""

OTHERS = ("lora", "low_rank", "matrix", "max_rank", "tensor")
"""In names of ranks that are none of a process."""


Places = dict[str, Lone]
"""Where code is meant for rank 0 alone. What comes of it may be broadcast (`roots`)."""


def hand_on(tree: ast.Module, filename: str) -> Places:
    """Let a deputy do what the module does on rank 0 alone. Changes `tree`; returns where."""
    rewriter = _Rewriter(filename)
    rewriter.visit(tree)
    return rewriter.found


class _Rewriter(ast.NodeTransformer):
    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.found: Places = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """A model's forward may be compiled, by what knows nothing of us."""
        return node if node.name == "forward" else self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, self._block(block))
        return node

    def _block(self, block: list[ast.stmt]) -> list[ast.stmt]:
        for place, statement in enumerate(block):
            if not isinstance(statement, ast.If) or statement.orelse:
                continue
            where, rest = f"{self.filename}:{statement.lineno}", block[place + 1 :]
            if _leaves(statement.body):
                told = _as_first(statement.test, False)
                if told and rest and not _talk(rest):
                    self._tell(statement, told, False)
                    self.found[where] = Lone(_written(rest), _read(rest))
                    return [*block[: place + 1], self._leading(rest, where)]
            elif not _talk(statement.body) and (told := _as_first(statement.test, True)):
                self._tell(statement, told, True)
                writes = _flowing(_written(statement.body), rest)
                self.found[where] = Lone(writes, _read(statement.body))
                statement.body = [self._leading(statement.body, where)]
        return block

    def _tell(self, statement: ast.If, told: list[ast.expr], sense: bool) -> None:
        where = f"{self.filename}:{statement.lineno}"
        swap = {id(one): _call("first", one, where, sense, one, *_value(one)) for one in told}
        statement.test = _swapped(statement.test, swap)

    def _leading(self, body: Sequence[ast.stmt], where: str) -> ast.stmt:
        return _block(self._each_call(body), where)

    def _each_call(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The same with a block of its own around calls that stand by themselves."""
        for statement in body:
            for field in ("body", "orelse"):
                inner = getattr(statement, field, None)
                if inner and isinstance(statement, ast.If | ast.For | ast.While | ast.With):
                    setattr(statement, field, self._each_call(inner))
        return [
            _block([one], f"{self.filename}:{one.lineno}") if isinstance(one, ast.Expr) else one
            for one in body
        ]


def _swapped(test: ast.expr, swap: dict[int, ast.Call]) -> ast.expr:
    """`test` with some parts replaced; they are under nothing but `and` and `or`."""
    if isinstance(test, ast.BoolOp):
        test.values = [_swapped(value, swap) for value in test.values]
    return swap.get(id(test), test)


def _as_first(test: ast.expr, sense: bool) -> list[ast.expr]:
    """The parts of `test` that are `sense` on rank 0 alone, if it needs one to be so."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if sense else ast.Or):
        return [one for value in test.values for one in _as_first(value, sense)]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        positive = _is_flag(test.operand) if not sense else _is_rank(test.operand)
        return [test] if positive else []
    if sense and _is_flag(test):
        return [test]
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        sides = (test.left, test.comparators[0])
        zero = any(isinstance(one, ast.Constant) and one.value in (0, "0") for one in sides)
        operator = ast.Eq if sense else ast.NotEq | ast.Gt
        if zero and isinstance(test.ops[0], operator) and any(map(_is_rank, sides)):
            return [test]
    return []


def _is_flag(node: ast.expr) -> bool:
    return name_of(node.func if isinstance(node, ast.Call) else node) in FLAGS


def _is_rank(node: ast.expr) -> bool:
    """Is it a rank by its name: of a variable, an attribute, a function, or of the environment?"""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.upper() in ("RANK", "LOCAL_RANK")
    if isinstance(node, ast.Call):
        return _is_rank(node.func) or any(map(_is_rank, node.args))
    if isinstance(node, ast.Subscript):
        return _is_rank(node.slice) or _is_rank(node.value)
    name = name_of(node).lower()
    if any(other in name for other in OTHERS):
        return False
    return name in NUMBERS or name.endswith("rank")


def _value(test: ast.expr) -> list[ast.expr]:
    """What `test` takes for a rank, to be compared with this one's."""
    if isinstance(test, ast.Compare):
        return [copy.deepcopy(one) for one in (test.left, *test.comparators) if _is_rank(one)]
    if isinstance(test, ast.UnaryOp) and _is_rank(test.operand):
        return [copy.deepcopy(test.operand)]
    return []


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Is it no more than the end of the function or the iteration?"""
    only = body[0] if len(body) == 1 else None
    return isinstance(only, ast.Continue | ast.Return)


def _talk(body: Sequence[ast.stmt]) -> bool:
    """Would others have to do the same, or wait for an answer?"""
    nodes = [node for statement in body for node in ast.walk(statement)]
    calls = {name_of(node.func) for node in nodes if isinstance(node, ast.Call)}
    ours = any(isinstance(node, ast.Name) and node.id == RUNTIME_NAME for node in nodes)
    ours |= any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Await) for node in nodes)
    return ours or not calls.isdisjoint(TALKS)


def _written(body: Sequence[ast.stmt]) -> tuple[str, ...]:
    """Names, also dotted ones, of what `body` assigns, or changes in place as torch spells it."""
    found: list[ast.expr] = []
    for node in (node for statement in body for node in ast.walk(statement)):
        match node:
            case ast.Name(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                found.append(node)
            case ast.Subscript(value=value, ctx=ast.Store()):
                found.append(value)
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if _in_place(method):
                found.append(value)
            case ast.keyword(arg="out", value=value):
                found.append(value)
    return tuple(sorted({name for name in map(_dotted, found) if name}))


def _read(body: Sequence[ast.stmt]) -> tuple[str, ...]:
    nodes = (node for statement in body for node in ast.walk(statement))
    loaded = {_dotted(node) for node in nodes if _is_loaded(node)}
    return tuple(sorted(name for name in loaded if name and not name.startswith(RUNTIME_NAME)))


def _is_loaded(node: ast.AST) -> TypeGuard[ast.Name | ast.Attribute]:
    return isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)


def _in_place(method: str) -> bool:
    return method.endswith("_") and not method.endswith("__")


def _flowing(names: Sequence[str], rest: Sequence[ast.stmt]) -> tuple[str, ...]:
    """`names`, and those that are assigned something made of them in what follows."""
    found = set(names)
    for statement in rest:
        if isinstance(statement, ast.Assign) and not found.isdisjoint(_read([statement])):
            found.update(_written([statement]))
    return tuple(sorted(found))


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written; "" of anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name) if before := _dotted(value):
            return f"{before}.{name}"
    return ""


def _block(body: list[ast.stmt], where: str) -> ast.stmt:
    call = _call("leading", body[0], where)
    return ast.copy_location(ast.With([ast.withitem(call)], body), body[0])


def _call(method: str, at: ast.expr | ast.stmt, *arguments: str | bool | ast.expr) -> ast.Call:
    runtime = ast.Name(RUNTIME_NAME, ast.Load())
    given = [one if isinstance(one, ast.expr) else ast.Constant(one) for one in arguments]
    call = ast.Call(ast.Attribute(runtime, method, ast.Load()), given, [])
    for node in (runtime, call.func, call, *given):
        if not hasattr(node, "lineno"):
            ast.copy_location(node, at)
    return call
