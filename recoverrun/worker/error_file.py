"""The error that ended a worker, for the launcher: torchrun's error file."""

import json
import os
import time
import traceback


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
        "message": words_of(error),
        "extraInfo": {
            "py_callstack": stack,
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
