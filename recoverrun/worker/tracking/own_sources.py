"""The sources of the script and its modules, as this process has loaded them.

A file may be edited while a job runs: a process that is started later would load other code than
the others run.
"""

import hashlib
from typing import Any

import msgpack

DIGEST_BYTES = 8


class OwnSources:
    """The script's own modules with the files from which they were loaded."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[str, bytes]] = {}  # path and digest, by module

    def load(self, module: str, path: str, source: bytes) -> None:
        digest = hashlib.blake2b(source, digest_size=DIGEST_BYTES).digest()
        self._files[module] = path, digest

    def pack(self) -> bytes:
        digests = {module: digest for module, (_, digest) in self._files.items()}
        return bytes(msgpack.packb(digests, use_bin_type=True))

    def edited(self, told: bytes) -> str:
        """The path of a file that another process has loaded with other contents, "" if none."""
        theirs: dict[str, Any] = msgpack.unpackb(told, raw=False)
        for module, (path, digest) in self._files.items():
            if theirs.get(module, digest) != digest:
                return path
        return ""
