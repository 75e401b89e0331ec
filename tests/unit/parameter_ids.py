"""Ids of the cases of a test, the same in each process that collects it (pytest-xdist)."""

import re

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def without_address(value: object) -> str:
    return ADDRESS.sub("", str(value))
