"""A script that hangs: all ranks wait for what never comes."""

import os
import threading


def wait_for_what_never_comes() -> None:
    print(f"rank {os.environ['RANK']} hangs", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    wait_for_what_never_comes()
