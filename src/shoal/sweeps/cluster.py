"""The same batches on a Dask cluster. Results come back to the client, which alone writes."""

import functools
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

from shoal.errors import InputError
from shoal.workers import Answer, Task, Worker

AHEAD = 2  # Batches that wait at every worker, so that none is idle.


_worker = functools.cache(lambda: Worker(os.getpid()))
"""The process that works for this Dask worker: pinned and in float64, as on one machine."""


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

    def ask() -> list[Any]:
        """Submit as many tasks as there is room for; their futures."""
        threads = sum(w["nthreads"] for w in client.scheduler_info(-1)["workers"].values())
        room = max(AHEAD * threads, 1) - len(asked)
        chosen = itertools.islice(queue, max(room, 0))
        new = {client.submit(perform, task, pure=False, retries=2): task for task in chosen}
        asked.update(new)
        return list(new)

    with client:
        done = distributed.as_completed(ask(), loop=client.loop)
        for future in done:
            task, finished = asked.pop(future), future.status == "finished"
            why = None if finished else str(future.exception())
            yield Answer(task, future.result() if finished else None, why)
            done.update(ask())
