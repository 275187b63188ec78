"""What tests of `shoal lab` share: a server in a process of its own, and plain requests to it."""

import contextlib
import http.client
import json
import os
import secrets
import subprocess
import sys
import threading
from urllib.parse import urlsplit

TINY = {"width": "16", "num_samples": "3", "num_tokens": "2", "dim": "6", "num_steps": "20"}
"""Settings of wu2023 that train in a moment."""

OWN = """
import sys
import jax, jax.numpy as jnp, numpy as np
import shoal as sh

print("run")

def f(params, x):
    print("traced")
    return jnp.tanh(x @ params["a"]) @ params["b"]

def model(width=4, fault="none", seeds=(0,)):
    if fault == "exit":
        sys.exit(3)
    while fault == "loop":
        pass
    x = np.random.default_rng(0).standard_normal((3, 4))
    def init(key):
        a, b = jax.random.split(key)
        return {"a": jax.random.normal(a, (4, width)), "b": jax.random.normal(b, (width,))}
    return sh.setup(f, init, x, 0.5 * x[:, 0], seeds=seeds)
"""
"""A user's file that prints, and can exit or never end."""


class Served:
    """A running lab: its address, and what it said on standard error."""

    def __init__(self, folder, *words):
        self.errors = []
        command = [sys.executable, "-m", "shoal", "lab", *words, "--no-open", "--json"]
        self.process = subprocess.Popen(
            [*command, "--out", str(folder / "out")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        self.address = json.loads(self.process.stdout.readline())["address"]
        parts = urlsplit(self.address)
        self.host, self.token = parts.netloc, parts.path.strip("/")
        self.origin = f"http://{self.host}"

    def _read_errors(self):
        self.errors.extend(self.process.stderr)

    def request(self, method, path, body=None, **headers):
        """One request by hand; the answer's status and text."""
        given = {"Host": self.host, "Origin": self.origin} | headers
        given = {
            name.replace("_", "-"): value for name, value in given.items() if value is not None
        }
        line = http.client.HTTPConnection(self.host)
        with contextlib.closing(line):
            line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                line.putheader(name, value)
            if body is not None and "Content-Length" not in given:
                line.putheader("Content-Length", str(len(body)))
            line.endheaders(body)
            answer = line.getresponse()
            return answer.status, answer.read()

    def page(self):
        """A page as a browser would be one, without a browser."""
        return Client(self)

    def memory(self):
        """Bytes that the server itself holds."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def close(self):
        self.process.terminate()
        code = self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code


class Client:
    """One page: its stream of events, and commands."""

    def __init__(self, served):
        self.served, self.name = served, secrets.token_hex(8)
        self.line = http.client.HTTPConnection(served.host)
        self.line.request("GET", f"/{served.token}/events/{self.name}")
        self.stream = self.line.getresponse()
        assert self.stream.status == 200

    def tell(self, do, **more):
        body = json.dumps({"do": do} | more).encode()
        path = f"/{self.served.token}/do/{self.name}"
        return self.served.request("POST", path, body)

    def look(self, values=TINY, number=1, target="wu2023", **more):
        state = {"target": target, "values": values} | more
        return self.tell("look", state=state, number=number)

    def messages(self):
        """Messages as they come."""
        for line in self.stream:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    def until(self, kind, fits=lambda _: True):
        """All messages up to the first of a kind that fits."""
        seen = []
        for message in self.messages():
            seen.append(message)
            if message["kind"] == kind and fits(message):
                return seen
        raise AssertionError(f"the stream ended before {kind}")

    def close(self):
        self.line.close()


def joined(messages):
    """Steps and risks of all records."""
    records = [m for m in messages if m["kind"] == "records"]
    steps = [step for m in records for step in m["step"]]
    return steps, [risk for m in records for risk in m["curves"]["risk"]]
