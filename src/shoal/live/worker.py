"""The process that owns JAX: commands in, messages out, one line of JSON each.

Standard output is for messages only: what a user's file prints goes to standard error. It ends when
its input ends, so no process is left behind, however the server ended.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any

from shoal.errors import InputError
from shoal.jsons import plain

MOST_SESSIONS = 16
"""Pages whose experiment is kept; the one that was quiet longest is forgotten first."""

QUIET = 0.15
"""Seconds without a command after which a slider is taken to rest."""


class Inbox:
    """Commands that wait. Of each page and kind only the newest is kept, so it stays small."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[str, str, str], dict[str, Any]] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, command: dict[str, Any]) -> None:
        """Add a command; an older one of its kind is dropped."""
        key = str(command.get("session")), str(command.get("do")), str(command.get("slot", ""))
        with self._changed:
            old = self._waiting.pop(key, None)
            if old is not None and old.get("reset"):
                command["reset"] = True  # a reset that was not done yet still counts
            self._waiting[key] = command
            self._changed.notify()

    def close(self) -> None:
        """No more commands will come."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, wait: float | None) -> dict[str, Any] | None:
        """The next command; waits at most so many seconds, or (None) until there is one."""
        with self._changed:
            if not self._waiting and not self._closed:
                self._changed.wait(wait)
            if self._waiting:
                return self._waiting.popitem(last=False)[1]
            if self._closed:
                raise EOFError
            return None


class Worker:
    """Handles commands and, between them, works on every page in turn."""

    def __init__(self, own: str, out: Path, stream: IO[bytes]) -> None:
        self.own, self.out, self.stream = own, out, stream
        self.sessions: OrderedDict[str, Any] = OrderedDict()
        self.inbox = Inbox()

    def tell(self, session: str, kind: str, **payload: Any) -> None:
        """Send a message: to whom and of what kind, a tab, and what the page gets."""
        about = json.dumps([session, kind, str(payload.get("slot", ""))])
        message = _plain({"kind": kind} | payload)
        body = json.dumps(message, separators=(",", ":"), allow_nan=False)
        self.stream.write(f"{about}\t{body}\n".encode())
        self.stream.flush()

    def _session(self, name: str) -> Any:
        from shoal.live.session import Session

        if name not in self.sessions:
            while len(self.sessions) >= MOST_SESSIONS:
                self.sessions.popitem(last=False)
            self.sessions[name] = Session(self.own, lambda kind, **p: self.tell(name, kind, **p))
        self.sessions.move_to_end(name)
        return self.sessions[name]

    def handle(self, command: dict[str, Any]) -> None:
        """Do what a command says; an error becomes a message."""
        name, do = str(command.get("session", "")), command.get("do")
        try:
            self._do(name, do, command)
        except InputError as error:
            self.tell(name, "error", text=str(error), about=do, slot=command.get("slot", ""))
        except (Exception, SystemExit) as error:  # a user's file may say sys.exit
            reason = str(error).splitlines()[0][:300] if str(error) else ""
            text = f"{type(error).__name__}: {reason}"
            self.tell(name, "error", text=text, about=do, slot=command.get("slot", ""))

    def _do(self, name: str, do: Any, command: dict[str, Any]) -> None:
        from shoal.live.state import read_state, whole

        if do == "forget":
            self.sessions.pop(name, None)
        elif do == "hello":
            self._hello(name)
        elif do == "look":
            number, reset = whole(command.get("number"), "number", 10**9), command.get("reset")
            self._session(name).look(
                read_state(command.get("state")), reset=reset is True, number=number
            )
        elif do == "go":
            pace = command.get("pace", 0)
            slow = isinstance(pace, int | float) and 0 < pace <= 1
            goal = whole(command.get("to"), "to", 10**9)
            self._session(name).go(goal, float(pace) if slow else 0.0)
        elif do == "pause":
            self._session(name).pause()
        elif do == "step_size":
            self._session(name).change_step(_positive(command.get("value")))
        elif do == "sample":
            self._session(name).look_inside(whole(command.get("sample"), "sample", 10**6))
        else:
            self._errand(name, str(do), command)

    def _hello(self, name: str) -> None:
        from shoal.live.desk import titles
        from shoal.live.stories import STORIES

        self.tell(name, "hello", targets=titles(self.own), stories=STORIES)

    def _errand(self, name: str, do: str, command: dict[str, Any]) -> None:
        from shoal.live.errands import ERRANDS, run_errand
        from shoal.live.state import read_state, whole

        if do not in ERRANDS:
            raise InputError(f"there is no command {do[:40]!r}.")
        state, steps = read_state(command.get("state")), whole(command.get("steps"), "steps", 10**9)
        found = run_errand(do, state, steps, self.own, self.out)
        self.tell(name, do, **found, slot=command.get("slot", ""), steps=steps)

    def turn(self, *, quiet: bool) -> bool:
        """One piece of work for some page; False if there is none."""
        for name, session in list(self.sessions.items()):
            try:
                if session.work(quiet=quiet):
                    self.sessions.move_to_end(name)
                    return True
            except (Exception, SystemExit) as error:  # it must not take the other pages along
                session.goal, session.soon, session.jobs = session.at, {}, {}
                text = f"{type(error).__name__}: {str(error)[:300]}"
                self.tell(name, "error", text=text, about="work")
        return False

    def serve(self) -> None:
        """Work until the input ends."""
        from shoal.runtime import clear_programs

        wait: float | None = 0.0
        heard = 0.0
        while True:
            command = self.inbox.take(wait)
            if command is not None:
                self.handle(command)
                wait, heard = 0.0, time.monotonic()
                continue
            quiet = time.monotonic() - heard >= QUIET
            if self.turn(quiet=quiet):
                wait = 0.0
            elif not quiet or any(s.busy() for s in self.sessions.values()):
                wait = 0.01  # until it is quiet; or a slow run waits for its time
            else:
                clear_programs()  # every program takes memory maps, and there is a limit
                wait = None


def _plain(value: Any) -> Any:
    """As `jsons.plain`, but whole arrays of finite numbers at once: curves are long."""
    if isinstance(value, dict):
        return {str(name): _plain(x) for name, x in value.items()}
    numbers = hasattr(value, "dtype") and value.dtype.kind in "fiu"
    return value.tolist() if numbers and (abs(value) < float("inf")).all() else plain(value)


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        raise InputError("step size: expected a number above 0.")
    return float(value)


def _read(inbox: Inbox) -> None:
    for line in sys.stdin.buffer:
        command = json.loads(line)
        if isinstance(command, dict):
            inbox.put(command)
    inbox.close()
    os._exit(0)  # a compilation under way is not waited for


def _own_output() -> IO[bytes]:
    """Standard output for messages only; what a user's file prints goes to standard error."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream


def main(own: str, out: str) -> None:
    """Work for a server, until it closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    stream = _own_output()
    worker = Worker(own, Path(out), stream)
    worker.tell("", "ready", process=os.getpid())
    threading.Thread(target=_read, args=(worker.inbox,), daemon=True).start()
    from shoal.runtime import command_session

    with command_session():
        import shoal.live.session  # noqa: F401 (heavy: loaded before the first command comes)

        worker.serve()


def check(target: str, settings: list[str]) -> None:
    """Say on standard output what is wrong with a target and its settings; nothing if all is well.

    A process of its own, so that the server never loads JAX.
    """
    from shoal.lab.setting import parse_assignments
    from shoal.live.desk import ask
    from shoal.live.state import State
    from shoal.runtime import command_session

    stream = _own_output()
    try:
        # standard output tells what is wrong; the user's file may print, too
        with command_session(), contextlib.redirect_stdout(sys.stderr):
            ask(State(target, tuple(parse_assignments(settings).items())), target)
    except InputError as error:
        stream.write(str(error).encode())
    stream.close()


if __name__ == "__main__":
    if sys.argv[1] == "check":
        check(sys.argv[2], sys.argv[3:])
    else:
        main(*sys.argv[2:4])
