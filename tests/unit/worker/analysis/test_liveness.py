"""The names that a block binds, and those that it may read before it has bound them."""

import ast

import pytest

from recoverrun.worker.analysis.liveness import liveness_of

# block, names that it assigns, names that it may read before (builtins are not used here)
TABLE = [
    ("a = b", "a", "b"),
    ("a += b", "a", "a b"),
    ("a.x += b", "", "a b"),
    ("a[i] = b", "", "a i b"),
    ("a = 1; b = a", "a b", ""),
    ("b = a; a = 1", "a b", "a"),
    ("a, *b = c; d = b", "a b d", "c"),
    ("(a, [b, c.x]) = d", "a b", "c d"),
    ("a: int = b", "a", "b"),
    ("del a", "a", "a"),
    ("a = 1; del a; b = a", "a b", "a"),
    ("import a.b, c as d; from e import f as g, h", "a d g h", ""),
    ("if a: b = 1\nc = b", "b c", "a b"),
    ("if a: b = 1\nelse: b = 2\nc = b", "b c", "a"),
    ("if a: raise x\nelse: b = 2\nc = b", "b c", "a x"),
    ("if a: continue\nb = 1\nc = b", "b c", "a"),
    ("for a in b: c = a\nd = c", "a c d", "b c"),
    ("for a in b: c = a\nelse: d = c", "a c d", "b c"),
    ("for a in b: d = a; del c", "a c d", "b c"),
    ("c = 1\nfor a in b: del c\nd = c", "a c d", "b c"),
    ("while (a := b): c = a\nd = a", "a c d", "b"),
    ("while True:\n    c = 1\n    break\nd = c", "c d", "c"),
    ("with a as b: c = b\nd = c", "b c d", "a"),
    ("with contextlib.suppress(E): c = b\nd = c", "c d", "contextlib E b c"),
    ("with a(b) as (c, d), c as e: pass", "c d e", "a b"),
    ("try: a = f()\nexcept E as e: b = e\nc = a", "a b c e", "f E a"),
    ("try: a = f()\nexcept E: raise\nc = a", "a c", "f E"),
    ("try: a = f()\nexcept E as e: pass\nb = e", "a b e", "f E e"),
    ("try: a = f()\nexcept E: a = 1\nelse: b = a\nc = a", "a b c", "f E"),
    ("try: a = f()\nfinally: b = a\nc = b", "a b c", "f a"),
    ("try: a = f()\nfinally: b = 1\nc = a, b", "a b c", "f"),
    ("try: a = 1\nexcept* E as e: b = e\nc = a", "a b c e", "E a"),
    (
        "match a:\n    case [b, *c]: d = b\n    case {'k': e, **f}: d = e\ng = d",
        "b c d e f g",
        "a d",
    ),
    ("match a:\n    case K(x=b) if b > c: d = b\n    case _: d = 1\ne = d", "b d e", "a K c"),
    ("match a:\n    case b: c = b\nd = c", "b c d", "a"),
    ("a = (b := c) + b", "a b", "c"),
    ("a = c and (b := c)\nd = b", "a b d", "b c"),
    ("a = (b := 1) if c else 2\nd = b", "a b d", "b c"),
    ("a = 0 < c < (b := 1)\nd = b", "a b d", "b c"),
    ("a = {1: b, (b := 2): 3}", "a b", "b"),
    ("assert a, (b := c)\nd = b", "b d", "a b c"),
    ("a = [x for x in b if x > c]", "a", "b c"),
    ("a = [x for x in b for y in x]", "a", "b"),
    ("a = [(y := x) for x in b]\nd = y", "a y d", "b y"),
    ("a = {x: y for x, y in b}; c = x", "a c", "b x"),
    ("f = lambda x, y=a: x + y + b", "f", "a b"),
    ("@d\ndef f(x: t = a, *v, k=b) -> r:\n    z = x + c + v\n    return z", "f", "d t a b r c"),
    ("def f():\n    nonlocal a\n    a = b", "a f", "b"),
    ("def f():\n    global a\n    a += 1", "a f", "a"),
    ("def f():\n    def g():\n        nonlocal a\n        a = 1\n    a = 2", "f", ""),
    ("def f():\n    def g():\n        nonlocal a\n        a = 1", "a f", ""),
    ("class C(B, m=M):\n    x = a\n    def f(self): return b", "C", "B M a b"),
    ("async def f():\n    async with a as b: await b", "f", "a"),
    ("global a; a = b", "a", "b"),
    ("f = 'x'; g = f'{f} {a:{b}}'", "f g", "a b"),
    ("raise a from b\nc = d", "c", "a b"),
    ("a = eval(b); c = 1", "a c", "a b c eval"),
]


@pytest.mark.parametrize(("block", "assigned", "live_in"), TABLE, ids=[row[0] for row in TABLE])
def test_what_a_block_assigns_and_may_read_first(block: str, assigned: str, live_in: str) -> None:
    tree = ast.parse("for _ in _:\n" + "".join(f"    {line}\n" for line in block.split("\n")))
    (loop,) = tree.body
    assert isinstance(loop, ast.For)

    result = liveness_of(loop.body)

    assert result.assigned == set(assigned.split())
    assert result.live_in == set(live_in.split())
