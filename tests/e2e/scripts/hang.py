"""A script that hangs: all ranks wait for what never comes."""

import os
import threading


def wait_for_what_never_comes() -> None:
    # One write: lines of several workers must not mix, and print() writes the end by itself.
    os.write(1, f"rank {os.environ['RANK']} hangs\n".encode())
    threading.Event().wait()


if __name__ == "__main__":
    wait_for_what_never_comes()
