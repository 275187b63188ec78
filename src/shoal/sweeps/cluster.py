"""The same batches on a Dask cluster. Results come back to the client, which alone writes."""

import functools
from collections.abc import Iterator
from typing import Any

from shoal.errors import InputError

AHEAD = 2  # batches that wait at every worker, so that none is idle


@functools.cache
def _worker() -> Any:
    """This process's own process for batches: pinned, in float64, like those of one machine."""
    import os

    from shoal.workers import Worker

    return Worker(os.getpid())


def do_batch(sweep_text: str, number: int) -> list[dict[str, Any]]:
    """What a Dask worker does."""
    answer = _worker().ask({"sweep": sweep_text, "batch": number})
    if answer.error is not None:
        raise RuntimeError(answer.error)
    return answer.value


def spread(address: str, sweep_text: str, numbers: Iterator[int]) -> Iterator[tuple[int, Any, str]]:
    """Batches done by a scheduler's workers: number, rows and, if it failed, the reason.

    Workers may come and go: what a lost one was doing is done again by another.
    """
    try:
        import distributed
    except ImportError:
        msg = "--scheduler needs Dask: pip install 'shoal[cluster]'."
        raise InputError(msg) from None
    try:
        client = distributed.Client(address, timeout="10s", set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        msg = f"no Dask scheduler answers at {address} ({type(error).__name__})."
        raise InputError(msg) from None
    with client:
        asked: dict[Any, int] = {}

        def ask() -> Any | None:
            number = next(numbers, None)
            if number is None:
                return None
            future = client.submit(do_batch, sweep_text, number, pure=False, retries=2)
            asked[future] = number
            return future

        def room() -> int:
            threads = sum(w["nthreads"] for w in client.scheduler_info(-1)["workers"].values())
            return max(AHEAD * threads, 1)

        first = [future for future in (ask() for _ in range(room())) if future is not None]
        done = distributed.as_completed(first, loop=client.loop)
        for future in done:
            number = asked.pop(future)
            if future.status == "finished":
                yield number, future.result(), ""
            else:
                yield number, None, str(future.exception())
            while len(asked) < room() and (new := ask()) is not None:
                done.add(new)
