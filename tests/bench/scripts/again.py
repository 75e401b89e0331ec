import os
import signal
import sys
import time

now = time.monotonic_ns()  # the first line of user code; no torch here
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
# One write: lines of several workers must not mix.
os.write(1, f"attempt {attempt} rank {os.environ['RANK']} pid {os.getpid()} at {now}\n".encode())
if attempt == "0":
    signal.pause()
sys.exit()
