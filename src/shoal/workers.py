"""Long work spread over processes, one per core: a small model cannot keep two cores busy.

A worker reads tasks from standard input, one line of JSON each, and answers each with a line. Tasks
hold names and numbers only; a paper that is a file is named by its absolute path. A worker ends
when its input ends: no process is left behind, however the parent ended.
"""

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from shoal.runtime import clear_programs, command_session

Task = dict[str, Any]


class Answer(NamedTuple):
    """The result of a task, or why there is none."""

    task: Task
    value: Any
    error: str | None = None


def absolute_target(target: str) -> str:
    """A target as every process can find it: a paper's key, or the absolute path of a file.

    >>> absolute_target("wu2023"), absolute_target("/data/my.py:line")
    ('wu2023', '/data/my.py:line')
    """
    file, own, name = target.partition(".py")
    return f"{Path(file + own).resolve()}{name}" if own else target


def perform(task: Task) -> Any:
    """Perform one task in this process: a batch, a question, a claim's seeds, part of a figure."""
    if "sweep" in task:
        from shoal.sweeps.batches import run_batch

        return run_batch(task["sweep"])
    if "question" in task:
        from shoal.sweeps.planner import answer

        return answer(task["question"])
    if "kernel" in task:
        from shoal.sweeps.tiles import make_line

        return make_line(task)
    from shoal.papers import paper_of, split_target

    if "claim" in task:
        from shoal.lab.claim import Claim
        from shoal.lab.spending import measured

        target, key = split_target(task["claim"])
        mine = [c for c in paper_of(target).claims if isinstance(c, Claim)]
        claim = next(c for c in mine if c.key.endswith(f".{key}"))
        return measured(claim, task["seeds"], task["control"])
    from shoal.disk.cache import used_measurements

    target, key = split_target(task["figure"])
    figure = next(figure for figure in paper_of(target).figures if figure.key == key)
    with used_measurements() as files:
        figure.jobs(task["full"])[task["job"]]()  # stores its result itself
    return {path.name: b64encode(path.read_bytes()).decode() for path in files}


class Worker:
    """A process that performs one task after the other on one core."""

    def __init__(self, place: int) -> None:
        self.place, self.ended = place, False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        pinned = [str(allowed[self.place % len(allowed)])] if allowed else []
        command = [sys.executable, "-m", "shoal.workers", *pinned]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def ask(self, task: Task) -> Answer:
        """Perform a task; if the process dies of it, once more in a new one."""
        for _ in range(2):
            if self.ended:
                break
            with contextlib.suppress(OSError, ValueError):  # its pipe is closed
                assert self.process.stdin is not None
                assert self.process.stdout is not None
                self.process.stdin.write(json.dumps(task) + "\n")
                self.process.stdin.flush()
                if line := self.process.stdout.readline():
                    return Answer(task, **json.loads(line))
            if not self.ended:
                self._clear()
                self.process = self._start()
        died = "its process died twice, perhaps for lack of memory"
        return Answer(task, None, "stopped" if self.ended else died)

    def _clear(self) -> None:
        """Kill the process, close its pipes and wait for it; unread output does not matter."""
        with contextlib.suppress(OSError, ValueError), self.process:
            self.process.kill()

    def end(self, asking: threading.Thread | None = None) -> None:
        """Stop at once; ``asking`` is the thread that waits for an answer, if any."""
        self.ended = True
        self.process.kill()
        if asking is not None:
            asking.join()  # it sees the end of the pipe
        self._clear()


def spread(tasks: Iterable[Task], *, most: int) -> Iterator[Answer]:
    """Perform tasks in at most ``most`` processes, yielding answers as they come.

    A task is taken from the iterator only when a process is free for it. An empty one means that
    there is none before another answer has been used.
    """
    line, taking, ended = iter(tasks), threading.Lock(), threading.Event()
    answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
    workers = [Worker(place) for place in range(most)]

    def serve(worker: Worker) -> None:
        while not ended.is_set():
            with taking:
                task = next(line, None)
            if task is None:
                break
            if not task:
                ended.wait(0.05)
                continue
            answers.put(worker.ask(task))
        answers.put(None)

    threads = [threading.Thread(target=serve, args=(w,), daemon=True) for w in workers]
    try:
        for thread in threads:
            thread.start()
        serving = len(workers)
        while serving:
            with contextlib.suppress(queue.Empty):  # the timeout lets Ctrl-C through
                if (answer := answers.get(timeout=0.2)) is None:
                    serving -= 1
                else:
                    yield answer
    finally:
        ended.set()
        for worker, thread in zip(workers, threads, strict=True):
            worker.end(thread if thread.is_alive() else None)


def _end_with_parent() -> None:
    """End this process when the other end of its input is closed, also in the midst of a task."""
    if hasattr(select, "poll"):
        closed = select.poll()
        closed.register(0, 0)  # only that the other end is gone
        closed.poll()
        os._exit(0)


def main(*pinned: str) -> None:
    """Serve tasks until standard input ends, on one core where the system can pin processes."""
    if pinned:  # before JAX is imported: it counts the cores that it may use
        os.sched_setaffinity(0, map(int, pinned))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    with command_session():
        for line in sys.stdin:
            clear_programs()  # a sweep may compile thousands of programs
            try:
                answer: dict[str, Any] = {"value": perform(json.loads(line))}
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # the parent decides what to do
                answer = {"value": None, "error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main(*sys.argv[1:])
