"""A transformer of syntax trees that instruments the loops of a module and changes nothing else.

Added nodes have the position of the loop's header, and all other nodes keep theirs, so tracebacks,
debuggers and `inspect` show the script as it was written.
"""

import __future__

import ast
from dataclasses import dataclass
from types import CodeType

from recoverrun.worker.analysis.call_graph import BackwardCalls, BackwardNames
from recoverrun.worker.analysis.liveness import liveness_of
from recoverrun.worker.analysis.rank_conditions import (
    NO_EXPORTS,
    BoundNames,
    Exports,
    may_ask_for_rank,
)
from recoverrun.worker.analysis.rank_conditions import bound_names as rank_names
from recoverrun.worker.analysis.scopes import bound_by, bound_names, scope_nodes
from recoverrun.worker.analysis.suspensions import suspensions_in
from recoverrun.worker.analysis.syntax_trees import visit_statements, walk
from recoverrun.worker.instrumentation import ITEM_NAME, RUNTIME_NAME, Loop, LoopKind
from recoverrun.worker.rewriting.counting_loops import counter_of
from recoverrun.worker.rewriting.loop_body import (
    NotReexecutable,
    body_module,
    copy_position,
    first_argument,
    mangled,
    prepare,
    refusal_of,
)
from recoverrun.worker.rewriting.loop_header import call_in
from recoverrun.worker.rewriting.rank0_shields import shielded
from recoverrun.worker.rewriting.rank0_transformer import Rank0Blocks, transform

RESERVED = frozenset({"locals", "globals", RUNTIME_NAME})

AnyLoop = ast.For | ast.AsyncFor | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef


class CannotInstrument(Exception):
    """The module has to run as it is; the message says why, in words for the user."""


@dataclass(frozen=True, slots=True)
class Instrumented:
    """A module ready to execute, RUNTIME_NAME being in its globals."""

    tree: ast.Module
    filename: str
    loops: tuple[Loop, ...]
    generators: int  # how many generator functions are decorated
    rank0_blocks: Rank0Blocks  # where something is meant for rank 0 alone

    @property
    def code(self) -> CodeType:
        return compile(self.tree, self.filename, "exec", dont_inherit=True)

    @property
    def changed(self) -> bool:
        """True if it differs from the module as it was written."""
        return bool(self.loops) or self.generators > 0 or bool(self.rank0_blocks)


def instrument(
    tree: ast.Module,
    filename: str,
    backward_names: BackwardNames,
    text: bytes | None = None,
    exports: Exports = NO_EXPORTS,
) -> Instrumented:
    """Rewrite a module. Changes `tree`. Skips searches for names that are not in `text`.

    `exports` are those of modules that it imports.

    Raises CannotInstrument if the module itself rules it out. Any other exception is a mistake in
    the rewriter, which the caller must survive: the module can always run as it is.
    """
    if text is None or any(name.encode() in text for name in RESERVED):
        taken = _bound_anywhere(tree) & RESERVED
        if taken:
            name = min(taken)
            raise CannotInstrument(f"{filename} uses the name `{name}` for something of its own")
    asks = bool(exports) or text is None or may_ask_for_rank(text)
    bound = rank_names(tree, exports) if asks else None
    calls = backward_names.calls_in(tree)
    rewriter = _Rewriter(filename, calls, _future_flags(tree), bound)
    rewriter.visit(tree)
    rank0_blocks = {} if bound is None else transform(tree, filename, bound)
    return Instrumented(tree, filename, tuple(rewriter.loops), rewriter.generators, rank0_blocks)


def _bound_anywhere(tree: ast.Module) -> set[str]:
    names = {node.arg for node in walk(tree) if isinstance(node, ast.arg)}
    return names.union(*(bound_by(node) for node in walk(tree)))


def _future_flags(tree: ast.Module) -> int:
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    return flags


def _call(method: str, where: ast.expr, *arguments: ast.expr) -> ast.Call:
    runtime = ast.Name(RUNTIME_NAME, ast.Load())
    function = ast.Attribute(runtime, method, ast.Load())
    call = ast.Call(function, list(arguments), [])
    for node in (runtime, function, call):
        copy_position(node, where)
    return call


def _statement(call: ast.Call) -> ast.Expr:
    return ast.copy_location(ast.Expr(call), call)


def _namespace(function: str, where: ast.expr) -> ast.expr:
    name = ast.copy_location(ast.Name(function, ast.Load()), where)
    return ast.copy_location(ast.Call(name, [], []), where)


def _keeps_kind(decorator: ast.expr) -> bool:
    """True if a generator function with this decorator is still one."""
    return isinstance(decorator, ast.Name) and decorator.id in ("staticmethod", "classmethod")


def _is_generator(node: Function) -> bool:
    return any(isinstance(n, ast.Yield | ast.YieldFrom) for n in scope_nodes(node.body))


def _kind(node: AnyLoop) -> LoopKind:
    if isinstance(node, ast.While):
        return "while"
    return "for" if isinstance(node, ast.For) else "async for"


def _header(node: AnyLoop) -> ast.expr:
    return node.test if isinstance(node, ast.While) else node.iter


class _Rewriter(ast.NodeTransformer):
    def __init__(
        self, filename: str, backward_calls: BackwardCalls, flags: int, bound: BoundNames | None
    ) -> None:
        self.filename = filename
        self.bound = bound  # None: the module asks for no rank
        self.backward_calls = backward_calls
        self.flags = flags
        self.loops: list[Loop] = []
        self.generators = 0
        self.scopes: list[Function | ast.ClassDef] = []
        self.around = [0]  # of the module and of each scope: instrumented loops around

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Loops are statements, and so is all that they are in."""
        visit_statements(self, node)
        return node

    def _visit_scope(self, node: ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        self._visit_within(node)
        return node

    def _visit_within(self, node: Function | ast.ClassDef) -> None:
        self.scopes.append(node)
        self.around.append(0)
        self.generic_visit(node)
        self.around.pop()
        self.scopes.pop()

    visit_AsyncFunctionDef = visit_ClassDef = _visit_scope

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        # Asked first: the instrumented body calls our own names too.
        is_data = (
            all(map(_keeps_kind, node.decorator_list))
            and node.name != "__iter__"
            and _is_generator(node)
            and not self.backward_calls.reached_by(node.body)  # it trains: it is no source of data
        )
        self._visit_within(node)
        if is_data:
            self.generators += 1
            runtime = ast.copy_location(ast.Name(RUNTIME_NAME, ast.Load()), node)
            decorator = ast.Attribute(runtime, "generator", ast.Load())
            node.decorator_list.append(ast.copy_location(decorator, node))
        return node

    def _may_train(self, node: AnyLoop) -> bool:
        """True if the loop may lead to a backward. One that gives data only if it is known to."""
        around = self.scopes[-1] if self.scopes else None
        if isinstance(around, ast.FunctionDef) and _is_generator(around):
            return self.backward_calls.reached_by(node.body)
        return self.backward_calls.may_be_in(node.body)

    def _visit_loop(self, node: AnyLoop) -> ast.AST | list[ast.AST]:
        if not self._may_train(node):
            return self.generic_visit(node)
        loop = self._describe(node)  # before the inner loops are instrumented
        self.loops.append(loop)
        breaks = any(isinstance(one, ast.Break) for one in scope_nodes(node.body))
        self.around[-1] += 1
        self.generic_visit(node)
        self.around[-1] -= 1
        where = _header(node)
        loop_id = ast.copy_location(ast.Constant(loop.id), where)
        local, global_ = _namespace("locals", where), _namespace("globals", where)
        node.body.insert(0, _statement(_call("top", where, loop_id, local, global_)))
        leave = _statement(_call("leave", where, loop_id))
        behind: list[ast.AST] = self._returning(node, loop_id)
        if isinstance(node, ast.For):
            node.iter = _call("iterate", where, loop_id, node.iter)
            behind = [leave, *behind] if breaks else behind
            return [node, *behind] if behind else node
        entered = ast.copy_location(ast.If(_call("enter", where, loop_id), [node], []), where)
        return [entered, leave, *behind]

    def _returning(self, node: AnyLoop, loop_id: ast.Constant) -> list[ast.AST]:
        """Let each `return` in the outermost loop of a function tell its value. The statement that
        is to follow the loop returns it where others have left the loop so.
        """
        function = self.scopes[-1] if self.scopes else None
        if self.around[-1] or not isinstance(function, ast.FunctionDef) or _is_generator(function):
            return []
        returns = [one for one in scope_nodes(node.body) if isinstance(one, ast.Return)]
        for one in returns:
            value = one.value or ast.copy_location(ast.Constant(None), one)
            one.value = _call("returns", value, loop_id, value)
        if not returns:
            return []
        where = _header(node)
        result = ast.copy_location(ast.Return(_call("result", where, loop_id)), where)
        test = _call("returned", where, loop_id)
        return [ast.copy_location(ast.If(test, [result], []), where)]

    visit_For = visit_AsyncFor = visit_While = _visit_loop

    def _describe(self, node: AnyLoop) -> Loop:
        class_name, first = self._owner()
        body = prepare(node.body, class_name, first)
        targets, item_code = self._target(node, class_name, first)
        reads = liveness_of(body)
        points = suspensions_in(node.body, self.filename)
        refusal = next((point.reason for point in points if point.always), "")
        refusal = refusal or refusal_of(node.body, self.filename)
        if isinstance(node, ast.AsyncFor):
            refusal = f"{self.filename}:{node.lineno}: the loop is an `async for`"
        body_code = None
        if not refusal:
            try:
                alone = body if self.bound is None else shielded(body, self.bound)
                body_code = self._compile(body_module(alone, node, self.filename))
            except (SyntaxError, NotReexecutable) as problem:
                where = f"{self.filename}:{node.lineno}"
                refusal = f"{where}: the loop body cannot be compiled on its own: {problem}"
        return Loop(
            id=f"{self.filename}:{node.lineno}",
            kind=_kind(node),
            filename=self.filename,
            line=node.lineno,
            last_line=node.end_lineno or node.lineno,
            module_level=not self.scopes,
            qualname=self._qualname(),
            assigned=reads.assigned,
            live_in=reads.live_in,
            carried=reads.assigned & reads.live_in - targets,
            targets=targets,
            tested=self._tested(node, class_name, first),
            global_names=reads.assigned & self._globals(class_name, reads.assigned),
            item_code=item_code,
            header_code=self._header_call(node, class_name, first),
            body_code=body_code,
            refusal=refusal,
            waits=tuple((point.line, point.reason) for point in points),
            counts=counter_of(node),
            branches=bool(node.orelse),
        )

    def _tested(self, node: AnyLoop, class_name: str, first: str) -> frozenset[str]:
        tests = [node.test] if isinstance(node, ast.While) else []
        return frozenset(bound_names(prepare(tests, class_name, first)))

    def _target(
        self, node: AnyLoop, class_name: str, first: str
    ) -> tuple[frozenset[str], CodeType | None]:
        if isinstance(node, ast.While):
            return frozenset(), None  # what its test binds is no item of anything
        (target,) = prepare([node.target], class_name, first)
        names = frozenset(bound_names([target]))
        if isinstance(node, ast.AsyncFor):
            return names, None
        item = ast.copy_location(ast.Name(ITEM_NAME, ast.Load()), target)
        assign = ast.copy_location(ast.Assign([target], item), target)
        return names, self._compile(ast.Module([assign], []))

    def _header_call(self, node: AnyLoop, class_name: str, first: str) -> CodeType | None:
        call = call_in(node.iter) if isinstance(node, ast.For) else None
        if call is None:
            return None
        (prepared,) = prepare([call], class_name, first)
        code: CodeType = compile(
            ast.Expression(prepared), self.filename, "eval", flags=self.flags, dont_inherit=True
        )
        return code

    def _compile(self, module: ast.Module) -> CodeType:
        flags = self.flags
        code: CodeType = compile(module, self.filename, "exec", flags=flags, dont_inherit=True)
        return code

    def _owner(self) -> tuple[str, str]:
        """Return the name of the class around, and the first argument of the function around."""
        classes = [scope.name for scope in self.scopes if isinstance(scope, ast.ClassDef)]
        inner = self.scopes[-1] if self.scopes else None
        first = "" if inner is None or isinstance(inner, ast.ClassDef) else (first_argument(inner))
        return (classes[-1] if classes else ""), first

    def _globals(self, class_name: str, assigned: frozenset[str]) -> frozenset[str]:
        if not self.scopes:
            return assigned
        inner = self.scopes[-1]
        return frozenset(
            mangled(name, class_name)
            for node in scope_nodes(inner.body)
            if isinstance(node, ast.Global)
            for name in node.names
        )

    def _qualname(self) -> str:
        parts: list[str] = []
        for scope in self.scopes:
            if parts and not isinstance(self.scopes[len(parts) - 1], ast.ClassDef):
                parts[-1] += ".<locals>"
            parts.append(scope.name)
        return ".".join(parts) or "<module>"
