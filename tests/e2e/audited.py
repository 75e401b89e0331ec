"""A launcher whose loop is watched: once its workers run, its main thread has no business with
files. usage: audited.py PYTHON -m recoverrun --run-dir DIR OPTIONS...

At the end it prints what its main thread did there, and how often other threads did.
"""

import sys
import threading

FILES = ("open", "os.mkdir", "os.remove", "os.rename", "os.listdir", "os.scandir", "os.link")


class Watch:
    """Hears of all calls that name a file below `folder`."""

    def __init__(self, folder: str, workers: int) -> None:
        self._folder = folder
        self._starting = workers
        self.main: list[str] = []
        self.others = 0

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if event == "subprocess.Popen":
            self._starting -= 1
        elif event in FILES and not self._starting and self._folder in str(args[0]):
            if threading.current_thread() is threading.main_thread():
                self.main.append(f"{event} {args[0]}")
            else:
                self.others += 1


def run() -> None:
    sys.argv = ["recoverrun", *sys.argv[4:]]
    words = dict(word.split("=", 1) for word in sys.argv if "=" in word)
    watch = Watch(sys.argv[2], int(words["--nproc-per-node"]))

    from recoverrun.cli.main import main

    sys.addaudithook(watch)
    try:
        main()
    finally:
        print(f"by other threads: {watch.others}", file=sys.stderr)
        print(f"by the main thread: {watch.main}", file=sys.stderr)


run()
