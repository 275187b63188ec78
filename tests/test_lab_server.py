"""`shoal lab` without a browser: who is let in, what is refused, and that nothing hangs."""

import asyncio
import io
import json
import os
import random
import signal
import socket
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shoal as sh
from live import OWN, TINY, Served, joined
from shoal.cli import main
from shoal.errors import InputError
from shoal.live.board import MOST_BYTES, MOST_PAGES, Board, Page
from shoal.live.state import State, command, read_state
from shoal.live.worker import Inbox
from shoal.workers import absolute_target

pytest.importorskip("starlette", reason="the extra lab is not installed")
pytest.importorskip("uvicorn", reason="the extra lab is not installed")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("lab"))
    yield served
    assert served.close() in (0, 143)
    assert not [line for line in served.errors if "Traceback" in line or "Error" in line]


# ------------------------------------------------------------------------------------ who is let in


def test_the_page_and_its_parts_are_served_with_a_strict_policy(lab):
    for part, kind in (
        ("", b"<!doctype html>"),
        ("static/main.js", b"import"),
        ("static/lab.css", b""),
    ):
        status, text = lab.request("GET", f"/{lab.token}/{part}", Origin=None)
        assert (status, kind in text) == (200, True)
    status, script = lab.request("GET", f"/{lab.token}/plotly.js", Origin=None)
    assert status == 200
    assert len(script) > 10**6


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 403),
        ("/wrong-token/", {}, 403),
        ("/wrong-token/do/abcdefgh", {}, 403),
        ("/TOKEN", {}, 404),
        ("/TOKEN/static/../server.py", {}, 404),
        ("/TOKEN/static/%2e%2e%2fserver.py", {}, 404),
        ("/TOKEN/pages/..%2f..%2fetc%2fpasswd", {}, 404),
        ("/TOKEN/nothing", {}, 404),
        ("/TOKEN/", {"Host": "evil.example"}, 421),
        ("/TOKEN/", {"Host": "127.0.0.1"}, 421),
        ("/TOKEN/", {"Host": None}, 400),
        ("/TOKEN/", {"Origin": "http://evil.example"}, 403),
        ("/TOKEN/", {"Origin": "null"}, 403),
        ("/TOKEN/", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/TOKEN/", {"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_other_tokens_hosts_and_origins_are_refused(lab, path, headers, status):
    path = path.replace("TOKEN", lab.token)
    assert lab.request("GET", path, **{"Origin": None} | headers)[0] == status


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1:1"])
def test_what_changes_something_must_come_from_the_own_page(lab, origin):
    for path in (f"/{lab.token}/do/abcdefgh", f"/{lab.token}/restart", f"/{lab.token}/data"):
        assert lab.request("POST", path, b"{}", Origin=origin)[0] == 403


# ---------------------------------------------------------------------------------- what is refused


def garbage(rng, lab):
    """A request that no browser would make."""
    good = f"POST /{lab.token}/do/abcdefgh HTTP/1.1\r\nHost: {lab.host}\r\nOrigin: {lab.origin}\r\n"
    bodies = [
        b"", b"{", b"[]", b"null", b'{"do": 5}', b'{"do": "look"}', b'{"do": "no such thing"}',
        b"[" * 5000, b'{"do": "look", "state": {"target": "\\u0000"}}', b"\xff\xfe" * 50,
        b'{"do": "look", "number": 1e999}', json.dumps({"do": "look", "x": "y" * 60000}).encode(),
        b'{"do": "go", "to": -5}', b"1" * 5000,
    ]  # fmt: skip
    body = rng.choice(bodies)
    return rng.choice([
        rng.randbytes(rng.randrange(1, 400)),
        b"GET " + rng.randbytes(40) + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: banana\r\n\r\n",
        f"GET /{'a' * 70000} HTTP/1.1\r\n\r\n".encode(),
        good.encode() + b"Content-Length: 99999999999\r\n\r\n",
        good.encode() + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        good.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body,
        f"GET /{lab.token}/events/{'x' * 300} HTTP/1.1\r\nHost: {lab.host}\r\n\r\n".encode(),
        f"GET /{lab.token}/%00%ff HTTP/1.1\r\nHost: {lab.host}\r\n\r\n".encode(),
    ])  # fmt: skip


def send_raw(lab, data):
    name, port = lab.host.split(":")
    with socket.create_connection((name, int(port))) as line:
        try:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            while line.recv(65536):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass


def test_a_thousand_malformed_requests_leave_no_trace(lab):
    rng = random.Random(0)
    for _ in range(100):  # what the server needs once
        send_raw(lab, garbage(rng, lab))
    before = lab.memory()
    for _ in range(1000):
        send_raw(lab, garbage(rng, lab))
    assert lab.memory() - before < 30 * 2**20
    assert lab.request("GET", f"/{lab.token}/", Origin=None)[0] == 200
    assert not [line for line in lab.errors if "Traceback" in line]


HOSTILE = [
    "",
    "wu2023\x00",
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "/tmp/evil.py:run",
    "x" * 2000,
]


@pytest.mark.parametrize("target", HOSTILE)
def test_a_link_cannot_name_a_file_or_anything_else(lab, target):
    page = lab.page()
    page.look(target=target)
    (*_, last) = page.until("error")
    assert "Traceback" not in last["text"]
    page.close()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([*State._fields, "other"]), json_values))
def test_a_state_is_read_or_refused_in_words(given_state):
    try:
        found = read_state(given_state)
    except InputError:
        return
    assert isinstance(found.target, str)
    assert all(isinstance(v, str) and len(v) <= 200 for pair in found.values for v in pair)


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/shoal-was-here",)


def hostile_files():
    with_object = io.BytesIO()
    np.savez(with_object, X=np.array([Evil()], dtype=object), y=np.ones(1))
    broken = bytearray(npz(X=np.ones((2, 3, 4)), y=np.ones(2)))
    broken[60:90] = b"\xff" * 30
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        about = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9000000000,), }"
        archive.writestr("X.npy", (b"\x93NUMPY\x01\x00v\x00" + about).ljust(127) + b"\n")
    return [b"", b"not a zip", with_object.getvalue(), bytes(broken), bomb.getvalue()]


@pytest.mark.parametrize("number", range(5))
def test_hostile_files_are_refused_and_not_kept(lab, number):
    status, said = lab.request("POST", f"/{lab.token}/data", hostile_files()[number])
    assert status == 422
    assert json.loads(said)["error"]
    assert b"lab-data" not in said
    assert not os.path.exists("/tmp/shoal-was-here")


def test_a_dropped_file_is_used_and_one_of_wrong_shape_is_refused_in_words(lab):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((3, 2, 4)), rng.standard_normal(3)
    status, said = lab.request("POST", f"/{lab.token}/data", npz(X=X, y=y))
    found = json.loads(said)
    assert (status, found["arrays"]["X"]) == (200, [3, 2, 4])
    page = lab.page()
    page.look({"width": "8", "num_steps": "4"}, data=found["data"])
    page.until("gauges")
    page.tell("go", to=4)
    _, risk = joined(page.until("status", lambda m: m["finished"]))
    run = sh.train(sh.setup("wu2023", width=8, data=_path(found["data"])), steps=4, probes=[])
    assert abs(risk[0] - run.risk[0, 0]) < 1e-12
    _, said = lab.request("POST", f"/{lab.token}/data", npz(X=np.ones(3), y=np.ones(3)))
    page.look(number=2, data=json.loads(said)["data"])
    assert "X" in page.until("error")[-1]["text"]
    page.close()


def _path(digest):
    from shoal.live.desk import data_file

    return data_file(digest)


# --------------------------------------------------------------------- nothing hangs, nothing grows


def test_a_run_over_the_line_is_the_run_of_train_to_the_last_digit(lab):
    page = lab.page()
    page.look()
    page.until("gauges")
    page.tell("go", to=7)  # in pieces of other lengths
    page.until("status", lambda m: m["at"] == 7 and not m["playing"])
    page.tell("go", to=20)
    seen = page.until("status", lambda m: m["finished"])
    steps, risk = joined(seen)
    assert steps[-1] == 20
    values = {k: v for k, v in TINY.items() if k != "num_steps"}
    setup = sh.setup("wu2023", **values)
    names = ["movement", "feature_sigma_min", "feature_norm"]
    run = sh.train(setup, steps=20, step_size=_step_of(setup), probes=names)
    assert risk == run.risk[0, steps].tolist()
    page.close()


def _step_of(setup):
    from shoal.lab.engine import default_steps

    return default_steps(setup)


def test_a_slow_client_does_not_stop_others_and_is_sent_what_it_missed(lab):
    slow, quick = lab.page(), lab.page()
    values = TINY | {"num_steps": "4000"}
    slow.look(values)
    slow.tell("go", to=4000)  # and its stream is not read
    for number in range(1, 30):
        quick.look(TINY | {"label_scale": str(0.1 * number)}, number=number)
        quick.until("gauges", lambda m, n=number: m["number"] == n)
    steps, _ = joined(slow.until("status", lambda m: m["finished"]))
    assert steps == list(range(4001))
    slow.close()
    quick.close()


def test_requests_that_are_never_finished_stop_nobody(lab):
    name, port = lab.host.split(":")
    whole = (
        f"POST /{lab.token}/do/abcdefgh HTTP/1.1\r\nHost: {lab.host}\r\nOrigin: {lab.origin}\r\n"
    )
    begun = (whole.encode()[:40], whole.encode() + b"Content-Length: 60000\r\n\r\n{")
    before, lines = lab.memory(), []
    for number in range(100):
        lines.append(socket.create_connection((name, int(port))))
        lines[-1].sendall(begun[number % 2])
    page = lab.page()
    page.look()
    page.until("gauges")
    assert lab.memory() - before < 30 * 2**20
    for line in (*lines, page):
        line.close()


def test_a_worker_that_is_killed_is_started_again_and_pages_are_told(lab):
    page = lab.page()
    page.tell("hello")
    page.look()
    page.until("gauges")
    (child,) = _children(lab.process.pid)
    os.kill(child, signal.SIGKILL)
    (*_, last) = page.until("ended")
    assert last["code"] == -signal.SIGKILL
    page.look(number=2)
    page.until("gauges", lambda m: m["number"] == 2)
    page.close()


def test_a_file_of_the_user_may_print_exit_and_change(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    target, quick = absolute_target(f"{file}:model"), {"num_steps": "2"}
    own = Served(tmp_path, target)
    page = own.page()

    def first_risk(number):
        page.look(quick, number, target)
        page.until("gauges", lambda m: m["number"] == number)
        page.tell("go", to=2)
        return joined(page.until("status", lambda m: m["finished"]))[1][0]

    before = first_risk(1)
    page.look(quick | {"fault": "exit"}, 2, target)
    assert "SystemExit" in page.until("error")[-1]["text"]
    file.write_text(OWN.replace("0.5 *", "0.75 *"))
    assert page.until("ended")[-1]["changed"]
    assert first_risk(3) != before
    page.close()
    assert own.close() in (0, 143)
    assert "traced\n" in own.errors
    assert not [line for line in own.errors if "Traceback" in line]


def _children(process):
    with open(f"/proc/{process}/task/{process}/children") as file:
        return [int(word) for word in file.read().split()]


def test_a_command_of_a_page_that_is_not_connected_is_refused(lab):
    body = json.dumps({"do": "hello"}).encode()
    assert lab.request("POST", f"/{lab.token}/do/0123456789abcdef", body)[0] == 409


def test_the_board_stays_small_and_a_late_reader_gets_what_counts():
    async def story():
        page, seen = Page(), 0
        for k in range(10_000):
            page.put("gauges", "", json.dumps({"number": k}))
        texts, seen = page.after(0)
        assert [json.loads(text)["number"] for text in texts] == [9999]
        for k in range(1000):
            page.put("pin", str(k), "{}")
        assert len(page.latest) <= 64
        page.put("run", "", "{}")
        page.put("records", "", '{"kind": "records"}')
        page.put("run", "", "{}")
        texts, _ = page.after(seen)
        assert not [text for text in texts if '"records"' in text]
        for _ in range(40):
            page.put("records", "", "x" * 2**20)
        assert page.size <= MOST_BYTES
        board = Board()
        for k in range(3 * MOST_PAGES):
            board.page(f"page{k}")
        assert len(board.pages) == MOST_PAGES
        for one in board.pages.values():
            one.readers = 1
        assert board.page("one more") is None

    asyncio.run(story())


def test_of_commands_that_wait_only_the_newest_of_a_kind_is_kept():
    inbox = Inbox()
    inbox.put({"session": "a", "do": "look", "number": 1, "reset": True})
    inbox.put({"session": "b", "do": "look", "number": 1})
    for number in range(2, 1000):
        inbox.put({"session": "a", "do": "look", "number": number})
    assert inbox.take(0)["session"] == "b"
    newest = inbox.take(0)
    assert (newest["number"], newest["reset"]) == (999, True)
    assert inbox.take(0) is None
    inbox.close()
    with pytest.raises(EOFError):
        inbox.take(None)


def test_a_command_line_quotes_what_a_shell_would_misread():
    state = State("wu2023", (("classes", "0,1; rm -rf /"),), theorem="theorem_a")
    assert "'classes=0,1; rm -rf /'" in command(state, 0.1, ("movement",), "")


# --------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["wu2032"], "did you mean 'wu2023'"),
        (["wu2023", "--set", "wdith=3"], "did you mean 'width'"),
        (["no/such/file.py:model"], "there is no file"),
        (["wu2023", "--port", "99999"], "expected a number from 0 to 65535"),
    ],
)
def test_what_is_wrong_is_told_before_a_page_opens(capsys, words, said):
    assert main(["lab", *words, "--no-open"]) == 2
    assert said in capsys.readouterr().err
