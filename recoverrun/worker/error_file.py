"""The error that ended a worker, for the launcher: torchrun's error file."""

import json
import os
import time
import traceback

MOST = 1 << 15
"""Characters of a text in the file. JSON needs up to twelve bytes for one, and the launcher reads
no more than 1 MiB of both texts.
"""


def file_age(path: str) -> int:
    """Return when a file was written (ns), 0 if there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def words_of(error: BaseException) -> str:
    """Return the kind of `error` and what it says."""
    try:
        said = str(error)
    except Exception:  # protects the report from a class of the script that cannot say itself
        said = "<exception str() failed>"
    return f"{type(error).__name__}: {said}"


def write_error_file(path: str, error: BaseException, instead: str = "") -> None:
    """Leave an error for the launcher, in the form of torchrun's error file; in the file `instead`
    where that cannot be, as on a disk that is full, which may be the error.
    """
    stack = "".join(traceback.format_exception(error))
    message = {
        "message": _bounded(words_of(error)),
        "extraInfo": {
            "py_callstack": _bounded(stack),
            "timestamp": str(int(time.time())),
            "monotonic": time.monotonic(),  # A wall clock may be set before anybody reads it.
        },
    }
    for place in filter(None, (path, instead)):
        try:
            with open(f"{place}.{os.getpid()}", "w", encoding="utf-8") as file:
                json.dump({"message": message}, file)
            os.replace(file.name, place)
        except OSError:
            continue  # The traceback that is printed next tells the same.
        return


def _bounded(text: str) -> str:
    """`text` without its middle, if it is long: a traceback begins and ends with what matters."""
    left_out = len(text) - MOST
    if left_out <= 0:
        return text
    return f"{text[: MOST // 2]}\n... {left_out} characters ...\n{text[-(MOST // 2) :]}"
