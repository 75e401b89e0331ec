"""A worker without torch: says what it was given, then does what PROBE_DO asks of its rank.

PROBE_DO is `RANK:RESTART:ACTION ...`, with `*` for any rank or restart.
"""

import json
import os
import signal
import subprocess
import sys
import time


def do(action: str) -> None:
    name, _, value = action.partition("=")
    if name == "exit":
        sys.exit(int(value))
    if name == "signal":
        os.kill(os.getpid(), int(value))
    if name == "raise":
        raise ValueError(value)
    if name == "wait":
        time.sleep(float(value))
    if name == "print":
        say(value)
    if name == "err":
        say(value, 2)
    if name == "catch":
        signal.signal(getattr(signal, value), lambda *_: say(f"GOT {value}"))
    if name == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if name == "child":
        command = [sys.executable, "-c", "import time; time.sleep(120)"]
        subprocess.Popen(command, start_new_session=value == "own")
    if name == "reply":
        extra = {"py_callstack": "Traceback: here", "timestamp": str(int(time.time()))}
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": {"message": f"KeyError: {value}", "extraInfo": extra}}, file)
        sys.exit(1)


def say(text: str, stream: int = 1) -> None:
    os.write(stream, text.encode() + b"\n")  # One write: lines of several workers must not mix.


def main() -> None:
    env = os.environ
    rank, restart = env["RANK"], env["TORCHELASTIC_RESTART_COUNT"]
    probe = {"rank": int(rank), "restart": int(restart), "argv": sys.argv[1:], "name": __name__,
             "file": os.path.basename(__file__), "path": os.path.basename(sys.path[0]),
             "env": dict(env), "pid": os.getpid(), "sid": os.getsid(0)}  # fmt: skip
    say("PROBE " + json.dumps(probe))
    for part in env.get("PROBE_DO", "").split():
        who, when, action = part.split(":", 2)
        if who in ("*", rank) and when in ("*", restart):
            do(action)


if __name__ == "__main__":
    main()
