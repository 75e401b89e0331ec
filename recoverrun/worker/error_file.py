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


def write_error_file(path: str, error: BaseException) -> None:
    """Leave an error for the launcher, in the form of torchrun's error file."""
    stack = "".join(traceback.format_exception(error))
    message = {
        "message": f"{type(error).__name__}: {error}",
        "extraInfo": {
            "py_callstack": stack,
            "timestamp": str(int(time.time())),
            "monotonic": time.monotonic(),  # A wall clock may be set before anybody reads it.
        },
    }
    try:
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            json.dump({"message": message}, file)
        os.replace(file.name, path)
    except OSError:
        return  # The traceback that is printed next tells the same.
