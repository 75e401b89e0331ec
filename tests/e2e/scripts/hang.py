"""A script that hangs: all ranks wait for what never comes."""

import os
import threading


def wait_for_what_never_comes() -> None:
    threading.Event().wait()


if __name__ == "__main__":
    print(f"rank {os.environ['RANK']} hangs", flush=True)
    wait_for_what_never_comes()
