"""torchrun without the second that its imports take: imported once, forked for every case.

Reads one JSON request per line: argv, environment, folder, files for the streams. Answers with the
pid, and with the wait status as soon as it has ended.
"""

import json
import os
import select
import sys

from torch.distributed import run as torchrun


def start(request: dict[str, object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.chdir(str(request["cwd"]))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        for fd, name in ((1, "stdout"), (2, "stderr")):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            os.dup2(os.open(str(request[name]), flags, 0o600), fd)
        environ = request["environ"]
        assert isinstance(environ, dict)
        os.environ.clear()
        os.environ.update(environ)
        argv = request["argv"]
        assert isinstance(argv, list)
        sys.argv[:] = ["torchrun", *argv]
        code = 0
        try:
            torchrun.main(argv)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException as error:  # What the interpreter would do with it.
            sys.excepthook(type(error), error, error.__traceback__)
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    finally:
        os._exit(1)


def main() -> None:
    waiting: dict[int, int] = {}
    print(json.dumps({"ready": True}), flush=True)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == 0:
                line = sys.stdin.buffer.raw.readline()  # type: ignore[attr-defined]
                if not line:
                    return
                pid = start(json.loads(line))
                pidfd = os.pidfd_open(pid)
                waiting[pidfd] = pid
                poll.register(pidfd, select.POLLIN)
                print(json.dumps({"pid": pid}), flush=True)
            else:
                pid = waiting.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                status = os.waitpid(pid, 0)[1]
                code = os.waitstatus_to_exitcode(status)
                print(json.dumps({"pid": pid, "code": code}), flush=True)


main()
