"""Random bodies, executed as regions, do what iterations of their loops do."""

import random
import textwrap

from tests.unit.worker.rewriting.test_loop_body import (
    NAMES,
    Model,
    _as_region,
    _loop_of,
    _natively,
    _plain,
)

PROGRAMS = 150


class Programs:
    """Random bodies of loops over five names; every program ends."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.counter = 0
        self.in_handler = False

    def name(self) -> str:
        return self.random.choice(NAMES)

    def expression(self) -> str:
        a, b, c = self.name(), self.name(), self.name()
        forms = (
            a,
            a,
            f"{a} + 1",
            f"{a} * {b}",
            f"({a} := {b} + 2)",
            f"({a} and ({b} := {c}))",
            f"({a} if {b} > {c} else {c})",
            f"sum(x + {a} for x in range(3))",
            f"sum([({a} := x) for x in range({b} % 3)])",
            f"(lambda x={a}: x + {b})()",
            f"({a} < {b} < ({c} := 4))",
            f"len({{x: {a} for x in (1, {b})}})",
            "item",
        )
        return self.random.choice(forms)

    def block(self, depth: int, loops: int) -> str:
        count = self.random.randint(1, 3)
        return "\n".join(self.statement(depth, loops) for _ in range(count))

    def indented(self, depth: int, loops: int) -> str:
        return textwrap.indent(self.block(depth - 1, loops), "    ")

    def statement(self, depth: int, loops: int) -> str:
        if depth == 0 or self.random.random() < 0.4:
            return self.simple()
        forms = (self.branch, self.loop, self.attempt, self.context, self.function, self.choice)
        return self.random.choice(forms)(depth, loops)

    def simple(self) -> str:
        a, b, e = self.name(), self.name(), self.expression()
        forms = (
            f"{a} = {e}",
            f"{a} = {e}",
            f"{a} += {e}",
            f"{a}, *{b} = {e}, 1",
            f"{a}: int = {e}",
            f"model.backward({e})",
            f"model.backward({e})",
            "break",
            "continue",
            f"return {e}",
            f"del {a}",
            f"{a} = 1 // {e}",
            f"for {a} in range(2): pass",
            f"{a} = {b} = {e}",
            f"class K:\n    z = {b}\n    def f(self): return {a}\n{b} = K.z, K().f()",
        )
        return self.random.choice(forms)

    def branch(self, depth: int, loops: int) -> str:
        other = f"\nelse:\n{self.indented(depth, loops)}" if self.random.random() < 0.5 else ""
        return f"if {self.expression()}:\n{self.indented(depth, loops)}{other}"

    def loop(self, depth: int, loops: int) -> str:
        self.counter += 1
        i = f"i{self.counter}"
        body = self.indented(depth, loops + 1)
        header = self.random.choice(
            (f"for {i} in range(3):", f"for {i}, {self.name()} in [(1, 2)]:")
        )
        if self.random.random() < 0.3:
            return f"{i} = 0\nwhile {i} < 2:\n    {i} += 1\n{body}"
        other = f"\nelse:\n{self.indented(depth, loops)}" if self.random.random() < 0.4 else ""
        return f"{header}\n{body}{other}"

    def attempt(self, depth: int, loops: int) -> str:
        form = self.random.randrange(3)
        text = f"try:\n{self.indented(depth, loops)}"
        if form != 0:
            kind = self.random.choice(
                ("Exception", f"ZeroDivisionError as {self.name()}", "(NameError, TypeError)")
            )
            text += f"\nexcept {kind}:\n{self.indented(depth, loops)}"
        if form == 2:
            text += (
                f"\nexcept:\n{self.indented(depth, loops)}\nelse:\n{self.indented(depth, loops)}"
            )
        return text + (f"\nfinally:\n{self.indented(depth, loops)}" if form != 1 else "")

    def context(self, depth: int, loops: int) -> str:
        return f"with Manager(model) as {self.name()}:\n{self.indented(depth, loops)}"

    def function(self, depth: int, loops: int) -> str:
        self.counter += 1
        f, a, b, c = f"f{self.counter}", self.name(), self.name(), self.name()
        local = "\n    ".join(
            (f"def inner({b}=1):", f"    nonlocal {a}", f"    {a} = {b} + 1", "inner()")
        )
        forms = (
            f"def {f}(x={a}):\n    nonlocal {b}\n    {b} = x + 1\n    return {b}\n{c} = {f}()",
            f"def {f}():\n    {a} = 5\n    {local}\n    return {a}\n{c} = {f}()",
            f"def {f}():\n    nonlocal {a}\n    {local}\n    return {a}\n{c} = {f}()",
            f"def {f}():\n    return {a} + 1\n{b} = {self.expression()}\n{c} = {f}()",
        )
        return self.random.choice(forms)

    def choice(self, depth: int, loops: int) -> str:
        a, b, c = self.name(), self.name(), self.name()
        pattern = self.random.choice(
            (
                f"({b}, 1)",
                f"int({b})" if b == "x" else f"[{b}, *{c}]" if b != c else "_",
                "3 | 4",
                "{'k': 1, **" + b + "}",
            )
        )
        return (
            f"match {self.random.choice((a, f'({a}, 1)', f'[{a}, 2, 3]'))}:\n"
            f"    case {pattern}:\n{textwrap.indent(self.indented(depth, loops), '    ')}\n"
            f"    case _:\n{textwrap.indent(self.indented(depth, loops), '    ')}"
        )


def _body(seed: int) -> str:
    body = f"model.backward()\n{Programs(seed).block(3, 0)}"
    # Not every mix is Python: a parameter that is nonlocal, say.
    try:
        compile(
            f"def f({', '.join(NAMES)}):\n for item in 1,:\n" + textwrap.indent(body, "  "),
            "s",
            "exec",
        )
    except SyntaxError:
        return "model.backward()"
    return body


def test_random_bodies_do_the_same_as_regions() -> None:
    start = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 0}
    for seed in range(PROGRAMS):
        body = _body(seed)
        loop = _loop_of(body)
        if "left from deep inside" in loop.refusal:
            continue
        native_model, region_model = Model(), Model()

        native = _natively(body, native_model, start)
        region = _as_region(loop, region_model, start)

        told = f"seed {seed}\n{body}"
        assert region[0] == native[0], told
        assert repr(_plain(region[1])) == repr(_plain(native[1])), told
        assert repr(region_model.seen) == repr(native_model.seen), told


def test_random_bodies_read_only_what_is_live_in() -> None:
    start = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 0}
    for seed in range(PROGRAMS):
        body = _body(seed)
        loop = _loop_of(body)
        if "left from deep inside" in loop.refusal:
            continue
        live = {name: value for name, value in start.items() if name in loop.live_in}
        whole_model, live_model = Model(), Model()

        whole = _as_region(loop, whole_model, start)
        lean = _as_region(loop, live_model, live)

        told = f"seed {seed}, live in {sorted(loop.live_in)}\n{body}"
        assert lean[0] == whole[0], told
        assert repr(live_model.seen) == repr(whole_model.seen), told
        unread = {name: start[name] for name in NAMES if name not in lean[1]}
        after = {name: value for name, value in whole[1].items() if name in unread}
        assert after.items() <= unread.items(), told
        rest = {name: value for name, value in _plain(whole[1]).items() if name not in unread}
        assert repr(_plain(lean[1])) == repr(rest), told
        changed = {n for n in NAMES if whole[1].get(n, None) is not start[n]}
        assert changed <= loop.assigned, told
