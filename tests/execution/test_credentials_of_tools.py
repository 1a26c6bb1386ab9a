"""Tools on real nodes and workers get credentials, and no place that is stored or shown has one.

Each binding has a canary of its own. Every tool gives its credential away in each way it can: as
result, in errors, in what it prints and logs, and by a server that repeats its requests.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from secrets import token_hex
from threading import Thread
from time import sleep
from typing import NamedTuple

import pytest

from rookery.bus import connect_sync
from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.run import SessionLimits
from tests.execution.canary_search import expect_no_part, images, shown, stored
from tests.execution.realm_fixture import Serving
from tests.nodes import NodeProcess, NotReady, node_on

HERE = str(Path(__file__).parents[2])
REALM = "credentials"
SANDBOX = ("--driver", "sandbox")
BINDINGS = """
[bindings.fixed]
provider = "static"
value = "file:{folder}/fixed"
surfaces = ["local", "lab"]

[bindings.stored]
provider = "static"
value = "secret:stored"

[bindings.web]
provider = "client_credentials"
token_url = "{url}/token"
client_id = "rookery"
client_secret = "env:CLIENT_SECRET"

[bindings.keyed]
provider = "static"
value = "file:{folder}/keyed"

[bindings.huge]
provider = "static"
value = "file:{folder}/huge"
"""


class Canaries:
    """One for each binding, and the client's secret."""

    def __init__(self) -> None:
        names = ("fixed", "stored", "web", "keyed", "client")
        self.by_name = {name: f"canary-{name}-{token_hex(12)}" for name in names}

    def __getitem__(self, name: str) -> str:
        return self.by_name[name]


class _Echo(BaseHTTPRequestHandler):
    """Issues one token, and repeats every other request in its answer. It refuses the first for
    ``/once``."""

    canaries: Canaries
    seen: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        token = {"access_token": self.canaries["web"], "token_type": "bearer", "expires_in": 900}
        self._answer(json.dumps(token).encode())

    def do_GET(self) -> None:
        said = f"{self.path} {self.headers}"
        is_refused = self.path == "/once" and not any(one.startswith("/once") for one in self.seen)
        self.seen.append(said)
        status = 401 if is_refused else 200
        self._answer(said.encode(), self.headers.get("Authorization", ""), status)

    def _answer(self, body: bytes, header: str = "", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Echo", header)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server without other realms: the search reads all its files."""
    with EmbeddedServer(tmp_path_factory.mktemp("searched") / "store", admin=True) as running:
        yield running


@pytest.fixture(scope="module")
def canaries() -> Canaries:
    return Canaries()


@pytest.fixture(scope="module")
def seen() -> list[str]:
    """What the echoing server got."""
    return []


@pytest.fixture(scope="module")
def echo(canaries: Canaries, seen: list[str]) -> Iterator[str]:
    handler = type("Echo", (_Echo,), {"canaries": canaries, "seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def node_of(server: EmbeddedServer, folder: Path, url: str, canaries: Canaries) -> NodeProcess:
    (folder / "rookery.toml").write_text(BINDINGS.format(folder=folder, url=url))
    for name in ("fixed", "keyed"):
        (folder / name).write_text(canaries[name])
    (folder / "huge").write_text("canary" * 200_000)
    rules = f"{url} 127.0.0.0/8 binding=web,{url} 127.0.0.0/8 binding=keyed query=key"
    return node_on(
        server,
        REALM,
        folder,
        *SANDBOX,
        *("--tools", "tests.execution.credential_tools:registry"),
        *("--workers", "lab", "--metrics-port", "0"),
        ROOKERY_NODE_ALLOW_HTTP=rules,
        CLIENT_SECRET=canaries["client"],
        PYTHONPATH=HERE,
        CANARIES=str(folder),
        PYTHONFAULTHANDLER="1",
    )


TRIES_HARD = """
import inspect
os, sys = inspect.os, inspect.sys
seen, found = set(), []

def walk(one, depth=0):
    if id(one) in seen or depth > 12:
        return
    seen.add(id(one))
    if isinstance(one, (bytes, bytearray, memoryview)):
        one = bytes(one).decode('latin-1')
    if isinstance(one, str):
        if 'canary-' in one:
            found.append(one)
        return
    parts = list(one) if isinstance(one, (list, tuple, set, frozenset)) else []
    if isinstance(one, dict):
        parts = [*one.keys(), *one.values()]
    for name in ('__dict__', '__closure__', '__code__', 'co_consts', 'cell_contents', '__self__',
                 '__wrapped__', '__globals__', '__defaults__', '__traceback__', 'tb_frame',
                 'tb_next', 'f_locals', 'f_globals', 'f_back', '__context__', '__cause__', 'args'):
        try:
            parts.append(getattr(one, name))
        except Exception:
            pass
    for part in parts:
        walk(part, depth + 1)

sys.setrecursionlimit(10_000)
try:
    give(how='raise')
except Exception as error:
    walk(error)
walk([sys.modules, sys._getframe(), dict(os.environ), give, give(), await give_soon(), lab_work()])
try:
    import gc
    walk(gc.get_objects())
except ImportError:
    pass
for path in ('/proc/self/environ', '/proc/1/environ', '/proc/self/mem', '/work', '/etc/passwd'):
    try:
        walk(open(path, 'rb').read())
    except OSError:
        pass
print(*found, *(one.encode().hex() for one in found))
len(seen), found
"""


class WorkerProcess(NamedTuple):
    """A worker in a process of its own."""

    pid: int
    log: Path
    """All that it says."""


@pytest.fixture(scope="module")
def worker(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("worker")
    url = server.url_for(Role.WORKER, realm=REALM, surface="lab")
    command = [str(Path(sys.executable).with_name("rookery")), "tools", "serve"]
    command += ["tests.execution.credential_tools:worker_registry", "--surface", "lab"]
    said = folder / "worker.log"
    with said.open("w") as log:
        environment = {"PYTHONPATH": HERE, "HOME": str(folder), "ROOKERY_REALM": REALM}
        with subprocess.Popen(
            [*command, "--url", url],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
        ) as process:
            yield WorkerProcess(process.pid, said)
            process.terminate()


@pytest.fixture(scope="module")
def serving(
    server: EmbeddedServer,
    tmp_path_factory: pytest.TempPathFactory,
    echo: str,
    canaries: Canaries,
    worker: WorkerProcess,
) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("credentials")
    with node_of(server, folder, echo, canaries) as node:
        found = Serving(server, node, REALM, folder, Role.OPERATOR)
        value = folder / "value"
        value.write_text(canaries["stored"])
        said = found.rookery("secrets", "set", "stored", "--file", str(value))
        assert said.code == 0, said.err
        value.unlink()
        yield found


@pytest.fixture
def client(serving: Serving) -> Iterator[SyncClient]:
    with connect_sync(serving.url_for(Role.OPERATOR), realm=REALM) as opened:
        yield opened


def search(serving: Serving, worker: WorkerProcess, *run_ids: str) -> bytes:
    """All that is stored, shown and said, the files of the server's store as they are, the opened
    images of sessions, and the variables and arguments of the worker and of every process that the
    node or its server has started."""
    files = [path for path in serving.server.store.rglob("*") if path.is_file()]
    raw = [path.read_bytes() for path in files]
    for pid in (serving.server.pid, worker.pid, *serving.node.processes):
        raw += [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
    raw += [stored(serving), images(serving), shown(serving, *run_ids)]
    return b"\n".join([*raw, worker.log.read_bytes()])


EVERYTHING = """
import asyncio
found = [give(), await give_soon(), lab_work()]
for call in (lambda: give(how='code'), lambda: give(how='raise')):
    try:
        call()
    except Exception as error:
        found.append(str(error))
for how in ('code', 'raise'):
    try:
        lab_work(how=how)
    except Exception as error:
        found.append(str(error))
found.append(await web_http_get('URL/a'))
found.append(await web_fetch_text('URL/b'))
found.append(await keyed_http_get('URL/c?x=1'))
for one in found:
    print(one)
found
"""


def test_calls_get_credentials_and_nothing_that_is_stored_or_shown_has_one(
    serving: Serving,
    client: SyncClient,
    worker: WorkerProcess,
    canaries: Canaries,
    echo: str,
    seen: list[str],
):
    """After runs that succeed, fail, park, and lose their node, which crashes during a call."""
    whole = client.run("whole", EVERYTHING.replace("URL", echo))
    assert whole.error is None, whole.error
    assert str(whole.result).count("[credential]") > 20
    asked = "\n".join(seen)
    assert f"Authorization: Bearer {canaries['web']}" in asked
    assert f"/c?x=1&key={canaries['keyed']}" in asked
    assert serving.rookery("sessions", "snapshot", "whole").code == 0
    failed = client.run("failed", "give(how='code')")
    assert "[credential]" in failed.error.message
    hard = client.run("hard", TRIES_HARD, limits=SessionLimits(wall_ms=60_000, cpu_ms=60_000))
    assert hard.error is None, hard.error
    assert hard.result[0] > 1_000
    assert serving.rookery("sessions", "snapshot", "hard").code == 0
    parked = client.begin("parked", "x = give()\nprint(x)\nawait sleep(86400)\nx")
    wait_for(client, "parked", "turn.parked.v1")
    lost = client.begin("lost", "hold()")
    while not (serving.folder / "held").exists():
        sleep(0.02)
    serving.node.signal(signal.SIGABRT)
    assert serving.node.ended() == -signal.SIGABRT
    crash = serving.node.log.read_bytes()
    assert b"Fatal Python error: Aborted" in crash
    assert b"hold" in crash
    serving.node.close()
    serving.node.start()
    wait_for(client, "lost", "turn.parked.v1")
    runs = (whole.run_id, failed.run_id, hard.run_id, parked.run_id, lost.run_id)
    haystack = search(serving, worker, *runs) + crash
    for canary in canaries.by_name.values():
        expect_no_part(haystack, canary)


def wait_for(client: SyncClient, session: str, kind: str) -> None:
    for fact in client.events(key=session):
        if fact["type"] == kind:
            return


def test_the_same_search_finds_what_is_planted(
    serving: Serving, client: SyncClient, worker: WorkerProcess
):
    """The honest control: a credential as it is, half of one, one in another encoding, and one in
    the memory of a program alone."""
    planted = [f"canary-{name}-{token_hex(12)}" for name in ("plain", "half", "hex", "held")]
    whole, half, encoded = planted[0], planted[1][:16], planted[2].encode().hex()
    client.run("planted", f"print({whole!r})\nprint({half!r})\n{encoded!r}")
    client.run("planted", f"held = bytes({[*planted[3].encode()]}).decode()\nNone")
    assert serving.rookery("sessions", "snapshot", "planted").code == 0
    assert planted[3].encode() in images(serving)
    haystack = search(serving, worker)
    for canary in planted:
        with pytest.raises(AssertionError, match="of the canary are there"):
            expect_no_part(haystack, canary)


def test_a_call_whose_credential_is_refused_fails_and_the_next_one_has_another(
    serving: Serving, client: SyncClient, echo: str, seen: list[str]
):
    failed = client.run("refused", f"await web_http_get('{echo}/once')")
    assert "CREDENTIAL_REJECTED" in str(failed.error)
    assert "the lease web, which is refreshed now" in failed.error.message
    assert sum(one.startswith("/once") for one in seen) == 1
    answer = client.run("refused", f"await web_http_get('{echo}/once')")
    assert (answer.error, answer.result["status"]) == (None, 200)
    shown = json.loads(serving.rookery("leases", "show", "web").out)
    assert shown["generation"] == 2
    half_done = client.run("refused", "refuse()")
    assert "CREDENTIAL_REJECTED" in str(half_done.error)


def test_a_credential_that_is_too_large_parks_its_run_and_no_other(
    serving: Serving, client: SyncClient
):
    client.begin("huge", "weigh()")
    wait_for(client, "huge", "turn.parked.v1")
    shown = json.loads(serving.rookery("leases", "show", "huge").out)
    assert "more than 65536 bytes" in shown["reason"]
    assert client.run("light", "give()").error is None


def test_a_tool_without_its_binding_or_without_its_grant_stops_the_start(
    server: EmbeddedServer, tmp_path: Path, worker: WorkerProcess
):
    local = ("--tools", "tests.execution.credential_tools:registry")
    unknown = node_on(server, REALM, tmp_path, *SANDBOX, *local, PYTHONPATH=HERE)
    with pytest.raises(NotReady, match="needs the binding fixed, which is not configured"), unknown:
        pass
    table = '[bindings.fixed]\nprovider = "static"\nvalue = "env:HOME"\n'
    (tmp_path / "rookery.toml").write_text(table)
    ungranted = node_on(server, REALM, tmp_path, *SANDBOX, "--workers", "lab")
    with pytest.raises(NotReady, match="needs the binding fixed, which is not for"), ungranted:
        pass
