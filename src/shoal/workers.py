"""Long work spread over processes, a core each: small models leave a second core idle.

A worker reads tasks from standard input, a line of JSON each, and answers each with a line. A task
names work that the worker finds by itself, so nothing but names and numbers crosses. A worker ends
when its input ends: no process is left behind, however the parent ended.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from shoal.programs import cores

Task = dict[str, Any]


class Answer(NamedTuple):
    """What became of a task."""

    task: Task
    value: Any
    error: str | None = None


def do(task: Task) -> Any:
    """Do one task in this process."""
    if "sweep" in task:
        from shoal.sweeps import batches

        return batches.do(task["sweep"], task["batch"])
    if "question" in task:
        from shoal.sweeps import planner

        return planner.answer(task["question"])
    from shoal.papers import paper_of

    key, _, figure = task["figure"].partition(".")
    recipe = next(r for r in paper_of(key).figures if r.key == figure)
    recipe.jobs(task["full"])[task["job"]]()  # keeps its result itself
    return None


class Worker:
    """A process that does tasks one after the other on one core."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.over = False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        pinned = [str(allowed[self.place % len(allowed)])] if allowed else []
        return subprocess.Popen(
            [sys.executable, "-m", "shoal.workers", *pinned],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, task: Task) -> Answer:
        """Do a task; if the process dies over it, once more in a new one."""
        for _ in range(2):
            with contextlib.suppress(OSError, ValueError):  # its pipe is closed
                assert self.process.stdin is not None
                assert self.process.stdout is not None
                self.process.stdin.write(json.dumps(task) + "\n")
                self.process.stdin.flush()
                if line := self.process.stdout.readline():
                    return Answer(task, **json.loads(line))
            if self.over:
                return Answer(task, None, "stopped")
            self._clear()
            self.process = self._start()
        return Answer(task, None, "its process died twice, perhaps for lack of memory")

    def _clear(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError, ValueError):  # what was not read does not matter
                assert pipe is not None
                pipe.close()

    def end(self, asking: threading.Thread | None = None) -> None:
        """Stop, whatever it is doing; ``asking`` is the thread that waits for its answer."""
        self.over = True
        self.process.kill()
        if asking is not None:
            asking.join()  # it sees the end of the pipe
        self._clear()


def spread(tasks: Iterable[Task], *, most: int | None = None) -> Iterator[Answer]:
    """Do tasks on all cores, yielding answers as they come.

    A task is taken from the iterator when a core is free for it, no earlier; ``most`` limits the
    number of processes.
    """
    line = iter(tasks)
    taking = threading.Lock()
    answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
    workers = [Worker(place) for place in range(cores() if most is None else most)]
    ended = threading.Event()

    def serve(worker: Worker) -> None:
        while not ended.is_set():
            with taking:
                task = next(line, None)
            if task is None:
                break
            answers.put(worker.ask(task))
        answers.put(None)

    threads = [threading.Thread(target=serve, args=(w,), daemon=True) for w in workers]
    try:
        for thread in threads:
            thread.start()
        serving = len(workers)
        while serving:
            try:
                answer = answers.get(timeout=0.2)  # so that Ctrl-C is heard while nothing comes
            except queue.Empty:
                continue
            if answer is None:
                serving -= 1
            else:
                yield answer
    finally:
        ended.set()
        for worker, thread in zip(workers, threads, strict=True):
            worker.end(thread if thread.is_alive() else None)


def main(*pinned: str) -> None:
    """Serve tasks until standard input ends, on one core where the system can pin processes."""
    if pinned:  # before JAX is imported: it counts the cores that it may use
        os.sched_setaffinity(0, map(int, pinned))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    from shoal.session import begin

    begin()
    from shoal.programs import make_room

    for line in sys.stdin:
        make_room()  # a sweep may compile thousands of programs
        try:
            answer: dict[str, Any] = {"value": do(json.loads(line))}
        except Exception as error:  # told to the parent, which decides
            answer = {"value": None, "error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main(*sys.argv[1:])
