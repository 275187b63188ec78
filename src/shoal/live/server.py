"""The server: one page, a few small POSTs, and a stream of events for each page.

It listens on the loopback only. The first part of every path is a random token; the Host must be
this server, and whatever changes something must come from its own page (Origin). Requests are
bounded in size, and so is what is remembered. It knows no mathematics and does not import JAX.
"""

import asyncio
import contextlib
import hashlib
import hmac
import html
import json
import secrets
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.errors import InputError
from shoal.files import cache_folder, read_npz, write_aside
from shoal.live.board import Board, Page
from shoal.live.process import WorkerProcess

LARGEST_COMMAND = 2**16
LARGEST_DATA = 64 * 2**20
DATA_FILES = 20
"""Dropped files that are kept; older ones are deleted."""
HEARTBEAT = 15.0
"""Seconds between signs of life on a quiet stream."""
LOOK = 1.0
"""Seconds between looks at the user's own file."""
ERRANDS = ("pin", "prove", "landscape", "save", "report")
COMMANDS = ("hello", "look", "go", "pause", "step_size", "sample", *ERRANDS)
STATIC = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuse what does not come from this server's own page, before anything looks at it."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token
        self.hosts: set[str] = set()  # Filled in when the port is known.

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        if headers.get("host", "") not in self.hosts:
            return 421, "this server answers for itself only"
        first = scope["path"].split("/")[1] if "/" in scope["path"] else ""
        if not hmac.compare_digest(first.encode("utf-8", "replace"), self.token.encode()):
            return 403, "wrong or missing token; use the address that shoal lab printed"
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        ours = {f"http://{host}" for host in self.hosts}
        if origin is not None and origin not in ours:
            return 403, "requests from other pages are refused"
        if site not in (None, "same-origin", "none"):
            return 403, "requests from other pages are refused"
        if scope["method"] == "POST" and origin is None:
            return 403, "a request that changes something must say its Origin"
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            status, reason = refusal
            await PlainTextResponse(reason, status, headers=SAFE)(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        await self.app(scope, receive, send)


async def _body(request: Request, most: int) -> bytes | None:
    """The body of a request; None if it is larger than allowed, or cut off."""
    said = request.headers.get("content-length", "0")
    if not said.isascii() or not said.isdigit() or int(said[:12]) > most:
        return None
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                return None
    except ClientDisconnect:
        return None
    return bytes(body)


class Lab:
    """The routes, and what they share."""

    def __init__(self, target: str, out: Path, start: dict[str, Any] | None = None) -> None:
        self.token = secrets.token_urlsafe(24)
        self.board, self.out, self.start = Board(), out, start or {}
        self.ending = False
        arguments = [target if ".py" in target else "", str(out)]
        file = target.rpartition(":")[0]
        file = file if file.endswith(".py") else target
        self.file = Path(file) if file.endswith(".py") else None
        self.seen = self._stamp()
        self.live = WorkerProcess("live", arguments, self.board.put)
        self.errands = WorkerProcess("errands", arguments, self.board.put)
        routes = [
            Route("/{token}/", self.index),
            Route("/{token}/static/{name}", self.static),
            Route("/{token}/plotly.js", self.plotly),
            Route("/{token}/events/{page}", self.events),
            Route("/{token}/do/{page}", self.do, methods=["POST"]),
            Route("/{token}/data", self.data, methods=["POST"]),
            Route("/{token}/restart", self.restart, methods=["POST"]),
            Route("/{token}/pages/{name}", self.report),
        ]
        handlers: Any = {404: _not_found, 405: _not_found, 500: _failed}
        self.app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)
        self.app.router.redirect_slashes = False
        self.guard = Guard(self.app, self.token)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        await self.live.start()  # JAX is loaded while the browser opens
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await self.live.close()
            await self.errands.close()

    def _stamp(self) -> tuple[int, ...] | None:
        """When the user's own file was written; None without one, or while it is replaced."""
        try:
            said = None if self.file is None else self.file.stat()
        except OSError:
            return None
        return said and (said.st_mtime_ns, said.st_size, said.st_ino)

    def renew(self) -> None:
        """If the user's own file has changed, end both workers: the next ones run it anew."""
        now = self._stamp()
        if now is not None and now != self.seen:
            self.seen = now
            self.live.kill(changed=True)
            self.errands.kill(changed=True)

    async def _watch(self) -> None:
        while self.file is not None:
            await asyncio.sleep(LOOK)
            self.renew()

    def listen_as(self, port: int) -> str:
        """Accept requests for this port, and return the address of the page."""
        self.guard.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        return f"http://127.0.0.1:{port}/{self.token}/"

    def end_streams(self) -> None:
        """Let every stream end, so that the server can."""
        self.ending = True
        for page in self.board.pages.values():
            page.changed.set()

    # ------------------------------------------------------------------------------------- routes

    async def index(self, _: Request) -> Response:
        """The page."""
        text = resources.files("shoal.live").joinpath("static/index.html").read_text("utf-8")
        page = text.replace("{{start}}", html.escape(json.dumps(self.start)))
        return Response(page, media_type="text/html", headers=SAFE)

    async def static(self, request: Request) -> Response:
        """Scripts and styles of the page."""
        name = request.path_params["name"]
        kind = STATIC.get(name.rpartition(".")[2])
        known = {entry.name for entry in resources.files("shoal.live").joinpath("static").iterdir()}
        if kind is None or name not in known:
            return await _not_found(request, None)
        content = resources.files("shoal.live").joinpath(f"static/{name}").read_bytes()
        return Response(content, headers=SAFE | {"Content-Type": kind})

    async def plotly(self, _: Request) -> Response:
        """The script that draws, from the installed package."""
        path = Path(str(resources.files("plotly").joinpath("package_data/plotly.min.js")))
        kept = SAFE | {"Cache-Control": "private, max-age=86400"}
        return FileResponse(path, media_type="text/javascript", headers=kept)

    async def report(self, request: Request) -> Response:
        """A page that the lab wrote."""
        name = request.path_params["name"]
        path = self.out / name
        if not name.endswith(".html") or Path(name).name != name or not path.is_file():
            return await _not_found(request, None)
        # it is self-contained, and brings a policy of its own
        own = SAFE | {"Content-Security-Policy": "sandbox allow-scripts"}
        return FileResponse(path, media_type="text/html", headers=own)

    async def events(self, request: Request) -> Response:
        """The stream of a page: first what it missed, then what comes."""
        name = request.path_params["page"]
        if not _is_name(name) or (page := self.board.page(name)) is None:
            return JSONResponse({"error": "too many pages are open"}, 503, headers=SAFE)
        kind = "text/event-stream"
        return StreamingResponse(self._stream(name, page), media_type=kind, headers=SAFE)

    async def _stream(self, name: str, page: Page) -> AsyncIterator[str]:
        page.readers += 1
        seen = 0
        try:
            while not self.ending:
                changed = page.changed
                texts, seen = page.after(seen)
                if texts:
                    yield "".join(f"data: {text}\n\n" for text in texts)
                if page.changed is changed:
                    try:
                        await asyncio.wait_for(changed.wait(), HEARTBEAT)
                    except TimeoutError:
                        yield ": still here\n\n"
        finally:
            page.readers -= 1
            if not page.readers:  # the tab was closed: nobody wants its run
                self.board.pages.pop(name, None)
                if not self.ending:
                    # not awaited: this may run while the connection is being torn down
                    self._later = asyncio.ensure_future(
                        self.live.send({"session": name, "do": "forget"})
                    )

    async def do(self, request: Request) -> Response:
        """A command of a page: handed to a worker, answered by events."""
        name, body = request.path_params["page"], await _body(request, LARGEST_COMMAND)
        if body is None:
            return JSONResponse({"error": "the request is too large"}, 413, headers=SAFE)
        command = _json_object(body)
        if command is None or not _is_name(name) or command.get("do") not in COMMANDS:
            return JSONResponse({"error": "expected a command as JSON"}, 400, headers=SAFE)
        if name not in self.board.pages:
            return JSONResponse({"error": "this page is not connected"}, 409, headers=SAFE)
        self.renew()
        worker = self.errands if command["do"] in ERRANDS else self.live
        if not await worker.send(command | {"session": name}):
            return JSONResponse({"error": "the worker is busy"}, 503, headers=SAFE)
        return JSONResponse({"taken": True}, 202, headers=SAFE)

    async def restart(self, _: Request) -> Response:
        """End both workers; the pages are told, and start them again."""
        self.live.kill()
        self.errands.kill()
        return JSONResponse({"taken": True}, 202, headers=SAFE)

    async def data(self, request: Request) -> Response:
        """Keep a file that was dropped, by its digest; it must hold plain arrays."""
        body = await _body(request, LARGEST_DATA)
        if body is None:
            large = f"the file is larger than {LARGEST_DATA // 2**20} MB; use --data instead"
            return JSONResponse({"error": large}, 413, headers=SAFE)
        digest = hashlib.sha256(body).hexdigest()[:32]
        try:
            shapes = await asyncio.to_thread(_keep, body, digest)
        except InputError as error:
            return JSONResponse({"error": str(error)}, 422, headers=SAFE)
        return JSONResponse({"data": digest, "arrays": shapes}, headers=SAFE)


def _keep(body: bytes, digest: str) -> dict[str, list[int]]:
    """Check a dropped file as any from outside, and keep it."""
    folder = cache_folder() / "lab-data"
    path = folder / f"{digest}.npz"
    write_aside(path, body)
    try:
        arrays = read_npz(path)
    except InputError as error:
        path.unlink(missing_ok=True)
        raise InputError(str(error).replace(str(path), "the file")) from None
    kept = sorted(folder.glob("*.npz"), key=lambda p: p.stat().st_mtime)
    for old in kept[:-DATA_FILES]:
        old.unlink(missing_ok=True)
    return {name[:40]: list(array.shape) for name, array in list(arrays.items())[:20]}


def _is_name(name: str) -> bool:
    return name.isascii() and name.isalnum() and 8 <= len(name) <= 40


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


async def _not_found(_: Request, __: Any) -> Response:
    return PlainTextResponse("there is nothing here", 404, headers=SAFE)


async def _failed(_: Request, __: Any) -> Response:
    return PlainTextResponse("shoal failed to answer this", 500, headers=SAFE)
