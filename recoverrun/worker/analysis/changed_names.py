"""The names under which a module's text changes variables of modules, its own or others'.

A project may have hundreds of modules, most of whose variables never change. Text is searched, not
parsed: of each module as it is imported, in some ten microseconds a kilobyte. What looks like a
change and is none (in a comment, of a local variable) costs a look at a variable of that name.
"""

import re
import string

from recoverrun.worker.instrumentation import Changes

METHODS = (
    rb"append|appendleft|extend|extendleft|insert|pop|popleft|popitem|remove|clear|update"
    rb"|setdefault|add|discard|subtract|sort|reverse|rotate|[a-z]\w*_"
)

DECLARED = tuple(
    re.compile(word + rb"(?<!\w" + word + rb")[ \t]+([\w \t,]+)")
    for word in (b"global", b"nonlocal")
)
OPERATOR = rb"[ \t]*+(?:[-+*/%&|^@]|//|\*\*|<<|>>)?=(?!=)"
ATTRIBUTE_WRITTEN = re.compile(rb"\.(\w++)" + OPERATOR)
ITEM_WRITTEN = re.compile(rb"\]" + OPERATOR)
CALLED = re.compile(rb"\.(?:" + METHODS + rb")\(")
DELETED = re.compile(rb"del(?<!\wdel)[ \t]+(?:\w+\.)*(\w+)\[")
ADVANCED = re.compile(rb"next(?<!\wnext)\([ \t]*(?:\w+\.)*(\w+)")
SET = re.compile(rb"setattr(?<!\wsetattr)\([^\n]*?,[ \t]*['\"](\w+)['\"]")
"""A pattern that begins with a plain word is searched for at a multiple of the speed of others."""

WORD = b"_0123456789" + string.ascii_letters.encode()

FAR = 160
"""Bytes before a change in which its name is looked for."""


def changed_names(source: bytes) -> Changes:
    """Return the names that `source` may change."""
    owners, attributes, contents = set[bytes](), set(SET.findall(source)), set[bytes]()
    for found in ATTRIBUTE_WRITTEN.finditer(source):
        if (owner := _name_before(source, found.start())) != b"self":
            owners.add(owner)
            attributes.add(found[1])
    contents |= {_name_before(source, found.start() + 1) for found in ITEM_WRITTEN.finditer(source)}
    contents |= {_name_before(source, found.start()) for found in CALLED.finditer(source)}
    contents.update(DELETED.findall(source), ADVANCED.findall(source))
    declared = [names for pattern in DECLARED for names in pattern.findall(source)]
    rebound = {word for names in declared for word in re.findall(rb"\w+", names)}
    return Changes(*map(_texts, (rebound, owners, attributes, contents)))


def _name_before(source: bytes, end: int) -> bytes:
    """Return the last name of an expression that ends there, what it has in brackets apart."""
    text = source[max(0, end - FAR) : end]
    while text.endswith(b"]"):
        depth, at = 1, len(text) - 1
        while depth and at > 0:
            at -= 1
            depth += {b"]": 1, b"[": -1}.get(text[at : at + 1], 0)
        text = text[:at]
    return text[len(text.rstrip(WORD)) :]


def _texts(words: set[bytes]) -> frozenset[str]:
    return frozenset(word.decode(errors="replace") for word in words - {b""})
