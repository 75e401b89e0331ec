"""A worker without torch that does what its arguments say, for the tests of the launcher.

Each argument is `RANKS:ACTION ACTION…`; RANKS is a number or `*` for all that have no line of their
own. Whatever it prints carries its rank, so that tests can wait for it.
"""

import json
import os
import signal
import subprocess
import sys
import time

from rendezvous.protocol import shared_memory
from rendezvous.protocol.messages import (
    Committed,
    Farewell,
    Hello,
    Message,
    Notice,
    Report,
    Topology,
    Verdict,
)
from rendezvous.protocol.store_messages import StoreCall
from rendezvous.protocol.views import View
from rendezvous.protocol.worker_env import WorkerEnv
from rendezvous.transport.worker_link import WorkerLink

PATIENCE_S = 30.0
TRAIN_S = 0.02
LOOK_S = 0.25
"""A signal that comes just before ZeroMQ waits is seen when that wait is over."""


class FakeWorker:
    def __init__(self, env: WorkerEnv) -> None:
        self.env = env
        self.rank = env.rank
        self.link = WorkerLink(env.endpoint, env.rank, env.incarnation)
        self.generation = 1
        self.missed: View | None = None
        """A view that came while an answer was awaited."""

    def say(self, text: str) -> None:
        # One write: lines of several workers must not mix.
        os.write(1, f"rank {self.rank}: {text}\n".encode())

    def wait_view(self, generation: int) -> View:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            message: Message | None = self.link.receive(1.0)
            if isinstance(message, View) and message.generation >= generation:
                self.generation = message.generation
                return message
        raise TimeoutError(f"rank {self.rank} saw no view {generation}")

    def greet(self) -> None:
        """Say hello, and wait for the answer. Said again, it tells that the coordinator has heard
        all that was said before: calls of the store go another way, and overtake that.
        """
        pid, incarnation = os.getpid(), self.env.incarnation
        self.link.send(Hello(rank=self.rank, incarnation=incarnation, pid=pid, torch="none"))
        before, view = self.generation, self.wait_view(1)
        if view.generation > before and self.rank in view.live:  # not yet reported to
            self.generation, self.missed = before, view

    def store(self, op: str, key: str, *values: bytes, amount: int = 0, wait_s: float = 5) -> str:
        call = StoreCall(
            rank=self.rank,
            serial=0,
            generation=0,
            op=op,  # type: ignore[arg-type]
            keys=(key,),
            values=values,
            amount=amount,
            timeout_s=wait_s,
        )
        answer = self.link.call(call, wait_s)
        return f"{answer.status} {b','.join(answer.values).decode()} {answer.number}"

    def act(self, action: str) -> None:
        name, _, value = action.partition("=")
        getattr(self, f"do_{name.replace('-', '_')}")(value)

    # ------------------------------------------------------------------- actions

    def do_hello(self, _: str) -> None:
        self.greet()
        self.say(f"hello {os.getpid()}")

    def do_topology(self, _: str) -> None:
        replicas = tuple((rank,) for rank in range(self.env.world_size))
        self.link.send(
            Topology(rank=self.rank, generation=self.generation, strategy="fake", replicas=replicas)
        )
        self.wait_view(1)
        promised = Verdict(
            rank=self.rank,
            generation=self.generation,
            promise="equal-count",
            microbatches=1,
            reason="nothing is trained",
        )
        self.link.send(promised)
        self.greet()
        self.say("topology")

    def do_view(self, generation: str) -> None:
        view = self.wait_view(int(generation))
        self.say(f"view {view.generation} lost {list(view.losses)}")

    def do_step(self, _: str) -> None:
        """The same, while a step is finished at each look: the other workers do as this one."""
        self.do_serve("", trains=True)

    def do_serve(self, key: str, *, trains: bool = False) -> None:
        """Stand at the commit point of step 0 in every view, until the end; read `key` in each."""
        self.say("serves")
        step = 0
        while True:
            message, self.missed = self.missed or self.link.receive(LOOK_S), None
            if trains:
                self.do_commit(str(step))
                self.say(f"commits {step}.")
                step += 1
            if not isinstance(message, View) or message.generation <= self.generation:
                continue
            self.generation = message.generation
            live = list(message.live)
            self.say(f"view {message.generation} of {live} at {time.monotonic():.3f}")
            self.link.send(
                Report(
                    rank=self.rank,
                    generation=self.generation,
                    step=0,
                    phase="settle",
                    microbatches=1,
                    done=((self.rank, 0),),
                    begun=(),
                    reduced=0,
                )
            )
            if key:
                self.do_get(key)

    def do_leave_context(self, text: str) -> None:
        shared_memory.Writer(self.env.context).write(text.encode())

    def do_commit(self, step: str) -> None:
        self.link.send(
            Committed(
                rank=self.rank,
                generation=self.generation,
                step=int(step),
                done=((self.rank, 0),),
                redone=(),
                total=self.env.world_size,
                digest="",
            )
        )

    def do_train(self, seconds: str) -> None:
        """Commit a step every few milliseconds, and ask the store after each; say how long its
        answers took. A notice at each makes the journal grow: steps alone are short lines.
        """
        began = time.monotonic()
        step, told, longest = 0, 0, 0.0
        while told < int(seconds):
            self.do_commit(str(step))
            self.do_notice(f"step {step}")
            step += 1
            asked = time.monotonic()
            self.store("add", "steps", amount=1, wait_s=PATIENCE_S)
            now = time.monotonic()
            longest = max(longest, now - asked)
            if now >= began + told + 1:
                told += 1
                self.say(f"trained {told} s, longest answer {longest * 1000:.0f} ms")
            time.sleep(TRAIN_S)  # the rhythm of its steps

    def do_notice(self, text: str) -> None:
        self.link.send(Notice(rank=self.rank, generation=1, event="notice.give", reason=text))

    def do_lie(self, _: str) -> None:
        self.link.send(Farewell(rank=self.rank + 1, generation=1, step=0))

    def do_garbage(self, _: str) -> None:
        self.link._outbox.send(b"\xc1 no message at all")

    def do_set(self, text: str) -> None:
        self.say(f"set {self.store('set', 'key', text.encode())}")

    def do_get(self, key: str) -> None:
        self.say(f"get {self.store('get', key, wait_s=5)}")

    def do_get_briefly(self, key: str) -> None:
        self.say(f"get {self.store('get', key, wait_s=0.2)}")

    def do_add(self, key: str) -> None:
        self.say(f"add {self.store('add', key, amount=1)}")

    def do_meet(self, key: str) -> None:
        """Go on when all ranks have come here."""
        count = int(self.store("add", key, amount=1).split()[-1])
        if count == self.env.world_size:
            self.store("set", f"{key}/all", b"come")
        self.store("get", f"{key}/all", wait_s=PATIENCE_S)
        self.say("meets all")

    def do_raise(self, text: str) -> None:
        stack = (
            f'Traceback (most recent call last):\n  File "train.py", line 7\nValueError: {text}\n'
        )
        extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
        message = {"message": f"ValueError: {text}", "extraInfo": extra}
        with open(self.env.error_file, "w") as file:
            json.dump({"message": message}, file)
        self.do_exit("1")

    def do_await(self, path: str) -> None:
        """Go on once somebody has made that file."""
        until = time.monotonic() + PATIENCE_S
        while not os.path.exists(path):
            if time.monotonic() > until:
                raise TimeoutError(f"rank {self.rank} saw no {path}")
            time.sleep(TRAIN_S)  # A file that another process makes: there is nothing to wait on.

    def do_farewell(self, step: str) -> None:
        self.link.send(Farewell(rank=self.rank, generation=self.generation, step=int(step)))
        self.link.close()

    def do_exit(self, code: str) -> None:
        self.link.close()
        sys.stdout.flush()
        os._exit(int(code))

    def do_sigkill(self, _: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_ignore_term(self, _: str) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *got: self.say(f"ignores {signal.Signals(got[0]).name}"))

    def do_child(self, session: str) -> None:
        command = [sys.executable, "-c", "import signal; signal.pause()"]
        child = subprocess.Popen(command, start_new_session=session == "own")
        self.say(f"child {child.pid}")

    def do_asked(self, _: str) -> None:
        """Go on once it is asked to end."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.say("waits to be asked")
        signal.sigwait({signal.SIGTERM})

    def do_hang(self, _: str) -> None:
        self.say("hangs")
        while True:
            signal.pause()

    def do_say(self, text: str) -> None:
        self.say(text)


def main() -> None:
    env = WorkerEnv.from_environ(os.environ)
    assert env is not None, "only started by a launcher"
    plans = dict(argument.split(":", 1) for argument in sys.argv[1:])
    worker = FakeWorker(env)
    for action in plans.get(str(env.rank), plans.get("*", "exit=0")).split():
        worker.act(action)
    worker.do_exit("0")


main()
