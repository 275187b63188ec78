"""What ``shoal lab`` does. JAX is not imported here: a worker loads it while the browser opens."""

import importlib.util
import json as json_module
import socket
import subprocess
import sys
import webbrowser
from pathlib import Path

from shoal.errors import InputError
from shoal.workers import absolute_target


def lab(
    target: str, *, settings: list[str] | None, port: int, out: Path, open_page: bool, json: bool
) -> None:
    """``shoal lab``: serve until interrupted."""
    try:
        import uvicorn

        from shoal.live.server import Lab
    except ImportError as error:
        msg = f"shoal lab needs {error.name}; install it with: pip install 'shoal[lab]'"
        raise InputError(msg) from None
    if out.exists() and not out.is_dir():
        raise InputError(f"{str(out)!r} is not a folder; choose another --out.")
    known, values = _checked(target, settings or [])
    start = {"target": known, "values": values}
    site = Lab(known, out.resolve(), start)
    listening = _listening(port)
    address = site.listen_as(listening.getsockname()[1])
    said = f"shoal lab is at {address}\n(on this machine only; Ctrl-C ends it)"
    print(said, file=sys.stderr, flush=True)
    if json:
        print(json_module.dumps({"address": address}), flush=True)
    if open_page:
        webbrowser.open(address)
    config = uvicorn.Config(
        site.guard, log_level="error", access_log=False, proxy_headers=False, ws="none",
        lifespan="on",
        limit_concurrency=200, h11_max_incomplete_event_size=2**16, timeout_graceful_shutdown=1,
        server_header=False,
    )  # fmt: skip

    class Server(uvicorn.Server):
        """Ends the streams of open pages before it waits for connections to close."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            site.end_streams()
            await super().shutdown(sockets)

    Server(config).run(sockets=[listening])


def _checked(target: str, settings: list[str]) -> tuple[str, dict[str, str]]:
    """The target as a worker finds it, and settings; what is wrong is told before a page opens."""
    found = absolute_target(target)
    if settings or target not in _shipped():
        worker = [sys.executable, "-m", "shoal.live.worker", "check", found, *settings]
        done = subprocess.run(worker, stdout=subprocess.PIPE, text=True, check=False)
        if wrong := done.stdout.strip():
            raise InputError(wrong)
        if done.returncode:
            raise InputError(f"{target} cannot be opened.")
    pairs = [word.partition("=") for word in settings]
    return found, {name.strip().replace("-", "_"): value.strip() for name, _, value in pairs}


def _shipped() -> set[str]:
    """Papers that ship with shoal: the folders of its package, which is not imported."""
    spec = importlib.util.find_spec("shoal.papers")
    places = spec.submodule_search_locations if spec else None
    return {path.name for place in places or () for path in Path(place).iterdir() if path.is_dir()}


def _listening(port: int) -> socket.socket:
    """A socket on the loopback; port 0 takes any that is free."""
    if not 0 <= port < 2**16:
        raise InputError(f"--port {port}: expected a number from 0 to 65535.")
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
        found.listen(128)  # a browser that comes early waits instead of being refused
    except OSError as error:
        found.close()
        raise InputError(f"--port {port} cannot be used ({error.strerror}); try another.") from None
    return found
