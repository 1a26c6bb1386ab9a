"""An instance that one session used serves another only if it is a new instance again."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.python import GuestCache
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime.image_guest import ImageInstance, InstancePool
from rookery.actors.sandbox.runtime.memory_image import (
    SYSTEM_PAGE_BYTES,
    Pristine,
    dirty_pages,
    written_pages,
)
from rookery.actors.sandbox.runtime.wasm import Engine
from rookery.actors.sandbox.sessions import session as session_module
from rookery.actors.sandbox.typescript.build import JavaScriptBuild
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.bus.clock import wait_until
from rookery.schemas.run import Language, RunRequest, SessionLimits
from tests.sandbox.checked_guest import CheckedGuest
from tests.sandbox.modes import HAS_FIBERS
from tests.sandbox.programs import without_time
from tests.sandbox.session_fixture import KEY, Stage, later

HOSTILE = {
    Language.PYTHON: (
        "import builtins, sys, gc\nbuiltins.len = lambda x: 7\nsys.modules['json'] = None\n"
        "gc.disable()\nsys.setrecursionlimit(77)\nint.__doc__\nsecret = 'hunter2' * 99",
        "class A:\n    def __del__(self): print('late')\nkept = [A() for _ in range(300)]",
        "open('/work/left', 'w').write('hunter2' * 9)",
        "import random, uuid, time\nrandom.seed(3)\n[uuid.uuid4().hex, time.time()]",
        "import asyncio\nasync def f(): await asyncio.sleep(99)\nt = asyncio.ensure_future(f())\n0",
        "def f(n): return f(n + 1)\ntry: f(0)\nexcept RecursionError: pass",
        "import sqlite3\nc = sqlite3.connect('a.db'); c.execute('create table t (x)')\n"
        "rows = c.execute('select 1'); next(rows)",
        "import sys\nsys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)\n"
        "sys.setswitchinterval(1); sys.meta_path.clear(); sys.path_hooks.clear()",
        "import builtins\nbuiltins.__import__ = builtins.print = None; del builtins.len",
        "def g():\n    try: yield 1\n    finally: print('late')\nkept = g(); next(kept)",
        "import decimal, locale, os\ndecimal.getcontext().prec = 3; os.chdir('/tmp')\n"
        "os.environ['SECRET'] = 'hunter2'; f = open('held', 'w'); f.write('half')",
        "import gc, weakref\nclass A: pass\na = A(); weakref.finalize(a, print, 'late')\n"
        "gc.callbacks.append(lambda *a: print(a)); gc.freeze(); gc.set_threshold(1, 1, 1)",
        "import guest.app\nguest.app.APP.serve = guest.app.encode = lambda *a: '{}'",
        "raise ValueError('x' * 500)",
        "x = = 1",
    ),
    Language.TYPESCRIPT: (
        "Array.prototype.map = () => 7; (globalThis as any).secret = 'hunter2'.repeat(99); 1",
        "let kept = Array.from({length: 300}, (_, i) => ({i})); kept.length",
        "Object.freeze(Object.prototype); Promise.prototype.then = undefined as any; 2",
        "import fs from 'fs'\nfs.mkdirSync('out'); fs.writeFileSync('out/a', 'hunter2'); 1",
        "setInterval(() => { console.log('late') }, 1); new Promise(() => {}).then(() => 1); 1",
        "new FinalizationRegistry(() => console.log('late')).register({}, 1)\n"
        "Error.stackTraceLimit = 0",
        "JSON.parse = JSON.stringify = () => '{}'; Map.prototype.get = () => 7; 1",
        "Object.defineProperty(Object.prototype, 'error', { get() { return { code: 'X' } } }); 1",
        "let held = [/a/g, 2n ** 900n, Symbol.for('left'), new WeakMap()]; /a/g.test('a')",
        "const f = (n: number): number => f(n + 1); try { f(0) } catch {}",
        "throw new Error('x'.repeat(500))",
        "let x = = 1",
    ),
}
_PROBE = {
    Language.PYTHON: "import random, uuid\n[random.random(), uuid.uuid4().hex, hash('a')]",
    Language.TYPESCRIPT: "[Math.random(), Date.now(), [1].map(x => x + 1)]",
}
MEBIBYTE = 1 << 20
FIRST_PRELUDE = (
    Path(__file__).parents[1] / "typescript/earlier_typescript/edition_1.js"
).read_text()


@pytest.fixture(scope="module", params=list(HOSTILE))
def checked(
    request: pytest.FixtureRequest, guest: PythonGuest, javascript_guest: JavaScriptGuest
) -> CheckedGuest:
    guests = {Language.PYTHON: guest, Language.TYPESCRIPT: javascript_guest}
    return CheckedGuest(guests[request.param])


@pytest.fixture
def one(engine: Engine, checked: CheckedGuest) -> Iterator[Sandbox]:
    """A sandbox that passes one instance on from session to session."""
    with Sandbox(engine, [checked], KEY, live_max=1, ready=0) as sandbox:
        yield sandbox


def _stage(sandbox: Sandbox, checked: CheckedGuest, name: str) -> Stage:
    return Stage(sandbox, name, language=checked.language)


def test_after_hostile_programs_a_reset_instance_is_a_new_one(one: Sandbox, checked: CheckedGuest):
    """An instance whose memory grew is closed; which programs need more depends on the build."""
    before = checked.resets
    for number, code in enumerate(HOSTILE[checked.language]):
        stage = _stage(one, checked, f"hostile-{number}")
        stage.run(code)
        stage.run("1 + 1")
        stage.end()
        assert checked.found == []
    assert checked.resets - before >= len(HOSTILE[checked.language]) // 2


def test_a_session_is_the_same_in_a_reset_instance(one: Sandbox, checked: CheckedGuest):
    """Its results, fuel and snapshot are those of a session in a new instance."""

    def all_of_it(name: str) -> tuple[Any, bytes]:
        stage = Stage(one, name, language=checked.language, seed=b"same")
        outcome = without_time(stage.run(_PROBE[checked.language]))
        data = one.snapshot(name).data
        stage.end()
        return outcome, data

    first = all_of_it("probed")
    for number, code in enumerate(HOSTILE[checked.language]):
        stage = _stage(one, checked, f"between-{number}")
        stage.run(code)
        stage.end()
        before = checked.resets
        assert all_of_it("probed") == first
        assert checked.resets > before
    assert checked.found == []


def test_sessions_that_rest_and_return_share_instances(one: Sandbox, checked: CheckedGuest):
    stages = [_stage(one, checked, f"shared-{number}") for number in range(3)]
    for turn in range(4):
        for number, stage in enumerate(stages):
            if turn == 0:
                stage.run(f"let n = {number}" if checked.language != "python" else f"n = {number}")
            else:
                assert stage.value("n") == number
    for stage in stages:
        stage.end()
    assert checked.found == []


def test_a_session_that_rests_gives_its_instance_back_on_the_thread_of_the_next_run(
    one: Sandbox, checked: CheckedGuest, monkeypatch: pytest.MonkeyPatch
):
    """If that thread may execute runs: it waits for no other thread."""
    for longest in ("_SUSPEND_NS_MAX", "_AT_ONCE_NS_MAX"):  # However slow this machine is.
        monkeypatch.setattr(session_module, longest, 1 << 60)
    threads: list[int] = []
    checked.on_reset = lambda: threads.append(threading.get_ident())

    def run(number: int) -> None:
        request = RunRequest(session_id=f"r{number}", code="1", language=checked.language)
        one.create(request.session_id, seed=b"", now_ms=0, language=checked.language)
        assert one.submit(request, now_ms=0, here=True).result().result == 1

    for number in (1, 2):
        run(number)
    pool = one._guests.pool(checked.language)
    assert wait_until(lambda: pool.is_ready, 60.0)  # Another thread made both instances.
    run(3)
    checked.on_reset = lambda: None
    if HAS_FIBERS:  # Else no run begins on the thread that requests it.
        assert threads[1:] == [threading.get_ident()]


LEAVES_ITS_CHECK = (
    "1<!--b; f(() => {\n}); Object.prototype.left = 'hunter2'; console.log('ran');"
    " f(async () => {\n1<!--b; })"
)
"""The compiler reads operators in the first line and in the last; the engine reads comments."""


def test_a_source_that_runs_while_it_is_checked_leaves_nothing_to_the_next(
    engine: Engine, cache: GuestCache
):
    """Builds of edition 2 had this way out; another engine may have others."""
    own = JavaScriptBuild.installed()
    build = msgspec.structs.replace(own, edition=2, prelude=FIRST_PRELUDE, parts={})
    checked = CheckedGuest(JavaScriptGuest(engine, cache, lambda: build))
    pool = InstancePool(checked, 0, lambda work: work())
    printed = []
    for source in (LEAVES_ITS_CHECK, "console.log(({}).left)", "let a: number = 1"):
        run = pool.check_run(source, {}, SessionLimits())
        pool.check(run)
        printed.append(run.tally.output.stdout)
    assert printed == ["ran\n", "", ""]
    assert (checked.resets, checked.found) == (3, [])
    instance = pool.acquire()
    assert instance.is_new  # type: ignore[attr-defined]
    instance.close()
    pool.close()


def test_what_the_compiler_reads_as_operators_is_no_comment(ts: Stage):
    assert ts.value("let b = 5; const less = 1<!--b; [less, b, 'a<!--b']") == [False, 4, "a<!--b"]
    assert ts.run(LEAVES_ITS_CHECK, validate_only=True).stdout == ""


@pytest.fixture
def python(engine: Engine, guest: PythonGuest) -> Iterator[tuple[Sandbox, CheckedGuest]]:
    checked = CheckedGuest(guest)
    with Sandbox(engine, [checked], KEY, live_max=8, ready=0) as sandbox:
        yield sandbox, checked


@pytest.mark.parametrize(
    ("code", "limits"),
    [
        ("while True: pass", {"cpu_ms": 100}),
        ("import inspect\ninspect.os._exit(0)", {}),
        ("grown = bytearray(40 << 20)\n0", {"memory_mb": 128}),
    ],
)
def test_an_instance_that_stopped_or_has_grown_serves_no_other_session(
    python: tuple[Sandbox, CheckedGuest], code: str, limits: dict[str, int]
):
    sandbox, checked = python
    stage = Stage(sandbox, "stopped")
    stage.run(code, limits=limits)
    stage.end()
    assert checked.resets == 0


def test_an_instance_that_waits_for_a_call_serves_no_other_session(
    python: tuple[Sandbox, CheckedGuest],
):
    sandbox, checked = python
    stage = Stage(sandbox, "waits")
    stage.wait("add(1)", later("add"))
    stage.end()
    assert checked.resets == 0


def test_the_written_pages_of_a_memory_are_all_that_differ(guest: PythonGuest):
    """An image has the same pages, whether the kernel names the written ones or not."""
    instance: ImageInstance[Any] = guest.instance()
    store = instance._wasm_store
    for at in (5 * MEBIBYTE, 9 * MEBIBYTE + 4095, store.size - 1):
        store.write(at, bytes([store.read(at, 1)[0] ^ 1]))
    image = dirty_pages(store, guest.pristine)
    pages = {at // 4096 for at in range(0, store.size, 4096) if _differs(store, guest.pristine, at)}
    assert int.from_bytes(image[12:16], "little") == len(pages) >= 3


def _differs(store: Any, pristine: Pristine, at: int) -> bool:
    return bool(store.read(at, 4096) != ctypes.string_at(pristine.address + at, 4096))


@pytest.mark.starts_something
def test_pages_are_those_of_this_process_also_after_a_fork(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(bytes(64 * SYSTEM_PAGE_BYTES))
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    assert not any(memory[:])  # Reading a page does not count.
    memory[3 * SYSTEM_PAGE_BYTES] = 1
    address = _address(memory)
    if not Path("/proc/self/pagemap").exists():
        assert written_pages(address, len(memory)) is None
        return
    assert written_pages(address, len(memory)) == [(3 * SYSTEM_PAGE_BYTES, SYSTEM_PAGE_BYTES)]
    child = os.fork()
    if not child:
        memory[9 * SYSTEM_PAGE_BYTES] = 1
        found = written_pages(address, len(memory))
        os._exit(0 if found and len(found) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(written_pages(address, len(memory)) or ()) == 1


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
