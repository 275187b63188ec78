"""The same batches on a Dask cluster. Results come back to the client, which alone writes.

Dask's own settings say how connections are secured: with ``distributed.comm.tls`` (or the variables
``DASK_DISTRIBUTED__COMM__TLS__*``) an address such as ``tls://node1:8786`` is used.
"""

import contextlib
import functools
import itertools
import logging
import os
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shoal import __version__, workers
from shoal.disk.cache import code_version
from shoal.errors import InputError
from shoal.runtime import cores
from shoal.workers import Answer, Task, Worker

Spread = Callable[[Iterable[Task], int], Iterator[Answer]]
"""Performs tasks, in at most as many places at once as its second argument says."""

AHEAD = 2  # Batches that wait at every worker, so that none is idle.


_worker = functools.cache(lambda: Worker(os.getpid()))
"""The process that works for this Dask worker: pinned and in float64, as on one machine."""


def version() -> str:
    """The version of shoal here, and a digest of its code: results depend on it."""
    return f"{__version__} ({code_version()})"


def perform(task: Task, wanted: str) -> Any:
    """What a Dask worker does with a task that another version of shoal may have sent."""
    if version() != wanted:
        from distributed import get_worker

        raise InputError(_refusal({get_worker().address: version()}, wanted))
    answer = _worker().ask(task)
    if answer.error is not None:
        raise RuntimeError(answer.error)
    return answer.value


def _refusal(others: dict[str, Any], wanted: str) -> str:
    who = ", ".join(f"{name} has {said}" for name, said in sorted(others.items()))
    return f"shoal here is {wanted}, but {who}; install the same version on every machine."


@contextlib.contextmanager
def spreading(scheduler: str | None) -> Iterator[Spread]:
    """Where a command's tasks are performed: by a scheduler's workers, or on all cores here."""
    if scheduler is None:
        yield lambda tasks, most: workers.spread(tasks, most=min(cores(), most))
        return
    with connected(scheduler) as client:
        yield lambda tasks, _: spread(client, tasks)


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of a scheduler all of whose workers have this version of shoal."""
    try:
        import distributed
        from distributed.comm.addressing import parse_address, parse_host_port
    except ImportError:
        raise InputError("--scheduler needs Dask: pip install 'shoal[cluster]'.") from None
    try:  # a client that was begun would try to close for as long as a busy machine lets it
        parse_host_port(parse_address(address)[1])
    except ValueError:
        msg = f"--scheduler {address}: expected an address such as tcp://node1:8786."
        raise InputError(msg) from None
    logging.getLogger("distributed").setLevel(
        logging.CRITICAL
    )  # what matters is said in a sentence
    try:
        client = distributed.Client(address, timeout="10s", set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError, RuntimeError) as error:
        msg = f"no Dask scheduler answers at {address} ({type(error).__name__})."
        raise InputError(msg) from None
    with client:
        here = version()
        said = client.run(version, on_error="return")
        if others := {name: there for name, there in said.items() if there != here}:
            raise InputError(_refusal(others, here))
        yield client


def spread(client: Any, tasks: Iterable[Task]) -> Iterator[Answer]:
    """Perform tasks on a scheduler's workers, yielding answers as they come.

    Workers may come and go: the tasks of a lost one are performed by another. A scheduler that is
    lost is an error.
    """
    import distributed
    from distributed.client import ClosedClientError

    queue, here = iter(tasks), version()
    asked: dict[Any, Task] = {}

    def ask() -> list[Any]:
        """Submit as many tasks as there is room for; their futures."""
        threads = sum(w["nthreads"] for w in client.scheduler_info(-1)["workers"].values())
        room = max(AHEAD * threads, 1) - len(asked)
        chosen = itertools.takewhile(bool, itertools.islice(queue, max(room, 0)))
        new = {client.submit(perform, task, here, pure=False, retries=2): task for task in chosen}
        asked.update(new)
        return list(new)

    try:
        done = distributed.as_completed(ask(), loop=client.loop)
        for future in done:
            task = asked.pop(future)
            if future.status not in ("finished", "error"):
                raise ConnectionError
            why = future.exception() if future.status == "error" else None
            if isinstance(why, InputError):
                raise why
            yield Answer(task, None if why else future.result(), str(why) if why else None)
            done.update(ask())
    except (OSError, CancelledError, distributed.CancelledError, ClosedClientError):
        # whichever call comes first to a scheduler that is gone says so in its own way
        raise ConnectionError("the Dask scheduler is gone") from None
