"""Files by which the kernel tells of this machine: below /proc and /sys."""

from pathlib import Path


def content_of(path: Path) -> str:
    """The content without white space around it; "" if there is no such file, or not any more."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
