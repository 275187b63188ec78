"""The same batches on a Dask cluster. Results come back to the client, which alone writes."""

import functools
import os
from collections.abc import Iterable, Iterator
from typing import Any

from shoal.errors import InputError
from shoal.workers import Answer, Task, Worker

AHEAD = 2  # Batches that wait at every worker, so that none is idle.


@functools.cache
def _worker() -> Worker:
    """The process that works for this Dask worker: pinned and in float64, as on one machine."""
    return Worker(os.getpid())


def perform(task: Task) -> Any:
    """What a Dask worker does with a task."""
    answer = _worker().ask(task)
    if answer.error is not None:
        raise RuntimeError(answer.error)
    return answer.value


def spread(address: str, tasks: Iterable[Task]) -> Iterator[Answer]:
    """Perform tasks on a scheduler's workers, yielding answers as they come.

    Workers may come and go: the tasks of a lost one are performed by another.
    """
    try:
        import distributed
    except ImportError:
        raise InputError("--scheduler needs Dask: pip install 'shoal[cluster]'.") from None
    try:
        client = distributed.Client(address, timeout="10s", set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        msg = f"no Dask scheduler answers at {address} ({type(error).__name__})."
        raise InputError(msg) from None
    queue = iter(tasks)
    asked: dict[Any, Task] = {}

    def room() -> int:
        threads = sum(w["nthreads"] for w in client.scheduler_info(-1)["workers"].values())
        return max(AHEAD * threads, 1) - len(asked)

    def ask() -> Iterator[Any]:
        while room() > 0 and (task := next(queue, None)) is not None:
            future = client.submit(perform, task, pure=False, retries=2)
            asked[future] = task
            yield future

    with client:
        done = distributed.as_completed(ask(), loop=client.loop)
        for future in done:
            task, finished = asked.pop(future), future.status == "finished"
            why = None if finished else str(future.exception())
            yield Answer(task, future.result() if finished else None, why)
            done.update(list(ask()))
