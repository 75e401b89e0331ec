"""Where our own packages lie: what is in their files is not the script's."""

import os
import sys

_PARENT = os.path.dirname(os.path.dirname(str(sys.modules["recoverrun"].__file__)))

FOLDERS = tuple(
    os.path.join(os.path.abspath(_PARENT), name) + os.sep
    for name in ("recoverrun", "rendezvous", "ft_collectives")
)
