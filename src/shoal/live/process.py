"""A worker process as the server sees it: lines out, lines in, started again when it ends.

The first command starts it. If it ends by itself (killed, out of memory), all pages are told, and
the next command starts another; what a page asked for last is asked again by the page.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

LONGEST_LINE = 2**26
"""Bytes of one message of a worker."""
MOST_WAITING = 2**20
"""Bytes that may wait to be read by a worker; more is refused."""


class WorkerProcess:
    """One worker; ``tell(page, kind, slot, text)`` receives its messages."""

    def __init__(
        self, name: str, arguments: list[str], tell: Callable[[str, str, str, str], None]
    ) -> None:
        self.name, self.tell = name, tell
        self.command = [sys.executable, "-m", "shoal.live.worker", "serve", *arguments]
        self.process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._reader: asyncio.Task | None = None
        self.closing = self.changed = False

    async def start(self) -> asyncio.subprocess.Process:
        """Start the worker if it does not run."""
        async with self._starting:
            if self.process is None or self.process.returncode is not None:
                self.process = await asyncio.create_subprocess_exec(
                    *self.command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    limit=LONGEST_LINE,
                    env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
                )
                self._reader = asyncio.create_task(self._read(self.process))
        return self.process

    async def send(self, command: dict[str, Any]) -> bool:
        """Give a command; False if the worker has too much to read already."""
        for _ in range(2):  # it may have just ended
            process = await self.start()
            stream = process.stdin
            assert stream is not None
            if stream.transport.get_write_buffer_size() > MOST_WAITING:
                return False
            try:
                stream.write(json.dumps(command).encode() + b"\n")
                await stream.drain()
            except (BrokenPipeError, ConnectionResetError):
                await process.wait()
            else:
                return True
        return False

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        stream = process.stdout
        assert stream is not None
        with contextlib.suppress(ValueError, ConnectionResetError):  # a line beyond the limit
            async for line in stream:
                with contextlib.suppress(ValueError):  # cut off by a kill
                    about, body = line.rstrip(b"\n").split(b"\t")
                    session, kind, slot = json.loads(about)
                    self.tell(session, kind, slot, body.decode())
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        if not self.closing:
            ended = {"kind": "ended", "slot": self.name, "code": process.returncode}
            text = json.dumps(ended | {"changed": self.changed})
            self.changed = False
            self.tell("", "ended", self.name, text)

    def kill(self, *, changed: bool = False) -> None:
        """End the worker, whatever it is doing (the user's file has ``changed``).

        The next command starts another.
        """
        if self.process is not None and self.process.returncode is None:
            self.changed = changed
            self.process.kill()

    async def close(self) -> None:
        """End it for good."""
        self.closing = True
        self.kill()
        if self._reader is not None:
            await self._reader
