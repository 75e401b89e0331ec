"""The folders of our own packages: code in their files is not the script's."""

import os
import sys

_PARENT = os.path.dirname(os.path.dirname(str(sys.modules["recoverrun"].__file__)))

FOLDERS = tuple(
    os.path.join(os.path.abspath(_PARENT), name) + os.sep
    for name in ("recoverrun", "rendezvous", "ft_collectives")
)
TEMPLATES = os.path.join(FOLDERS[0], "templates") + os.sep


def has(path: str) -> bool:
    """True if a file is ours. A template is a script, also where the wheel has put it."""
    return path.startswith(FOLDERS) and not path.startswith(TEMPLATES)
