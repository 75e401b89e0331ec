"""Tries a run directory before there is one."""

import os
import secrets
import shutil
import time
from pathlib import Path

TRIED_BYTES = 4096


def nearest(run_dir: Path) -> Path:
    """The directory itself, or the nearest one above it that is there."""
    places = (run_dir, *run_dir.absolute().parents)
    return next((one for one in places if one.exists()), Path("/"))


def tried(run_dir: Path) -> tuple[str, int, float]:
    """The reason why a run directory cannot be used ("" if it can), its free bytes, milliseconds of
    a fsync.

    A file is written where the directory is or would be made, and removed.
    """
    place = nearest(run_dir)
    draft = place / f".doctor.{secrets.token_hex(8)}"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            began = time.monotonic()
            os.write(fd, bytes(TRIED_BYTES))
            os.fsync(fd)
            fsync_ms = (time.monotonic() - began) * 1000
        finally:
            os.close(fd)
            draft.unlink()
        return "", shutil.disk_usage(place).free, fsync_ms
    except OSError as error:
        return (error.strerror or str(error)).lower(), 0, 0.0
