"""The guest is built once, cached in a private folder, and linked to all of its state."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import wasmtime

from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.python import build as guest_build
from rookery.actors.sandbox.python.build import GuestCache, cache_folder
from rookery.actors.sandbox.python.component_layout import read_layout, read_module
from rookery.actors.sandbox.python.link import LinkPlan
from rookery.actors.sandbox.python.python_guest import PythonGuest, PythonInstance
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.run import Language
from tests.sandbox.session_fixture import KEY, Stage

TINY = wasmtime.wat2wasm('(module (func (export "f") (result i32) i32.const 42))')


def test_builds_are_in_the_users_cache():
    assert cache_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/rookery/sandbox")
    assert cache_folder({"HOME": "/h"}) == Path("/h/.cache/rookery/sandbox")


def test_a_folder_that_other_users_can_write_to_is_refused(tmp_path: Path):
    tmp_path.chmod(0o777)
    with pytest.raises(Refused) as refused:
        GuestCache(tmp_path)
    assert refused.value.code == "CONFIG_INVALID"
    assert str(tmp_path) in refused.value.hint


def test_a_new_folder_is_private(tmp_path: Path):
    GuestCache(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_concurrent_builders_build_once_and_report_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    builds: list[bool] = []
    messages: list[str] = []
    together = threading.Barrier(4)

    def build(stub_wasi: bool, _wheels: object) -> bytes:
        builds.append(stub_wasi)
        return b"a component"

    def use() -> None:
        together.wait(90)
        got.append(GuestCache(tmp_path / "cache", messages.append).component(stub_wasi=True))

    monkeypatch.setattr(guest_build, "_build", build)
    got: list[bytes] = []
    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (builds, got) == ([True], [b"a component"] * 4)
    assert len(messages) == 2
    assert "building the Python guest" in messages[0]
    assert messages[1] == "done\n"


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    messages: list[str] = []
    monkeypatch.setattr(guest_build, "_WORLD", "no-such-world")
    with pytest.raises(Failed) as failed:
        GuestCache(tmp_path / "cache", messages.append).component(stub_wasi=True)
    assert failed.value.code == "GUEST_BUILD_FAILED"
    assert "no-such-world" in failed.value.message
    assert messages[-1] == "failed\n"
    assert not list((tmp_path / "cache").rglob("*.wasm"))


def test_an_adopted_build_replaces_the_own_one(tmp_path: Path):
    cache = GuestCache(tmp_path / "cache", lambda text: pytest.fail(f"it built: {text}"))
    for build in (b"theirs", b"theirs, newer"):
        cache.adopt(build)
        assert cache.component(stub_wasi=True) == build


def test_native_code_of_another_engine_is_compiled_again(tmp_path: Path, engine: wasmtime.Engine):
    messages: list[str] = []
    cache = GuestCache(tmp_path / "cache", messages.append)
    cache.modules(engine, {0: TINY})
    (path,) = (tmp_path / "cache").rglob("*.cwasm")
    compiled = path.read_bytes()
    for bad in (b"", b"nonsense", wasmtime.Module(wasmtime.Engine(), TINY).serialize()):
        path.write_bytes(bad)
        messages.clear()
        assert set(cache.modules(engine, {0: TINY})) == {0}
        assert "compiling" in messages[0]
        assert path.read_bytes() == compiled
    messages.clear()
    cache.modules(engine, {0: TINY})
    assert messages == []


ROUGH = (
    "class A: pass\nL = [A() for _ in range(50_000)]\ndef g(n): return n and g(n - 1)\ng(100)",
    "try: 1/0\nexcept Exception: pass\nadd(1)\nsorted(range(1000), key=lambda x: -x)",
    "import asyncio\nawait asyncio.sleep(1)\nawait fetch(1)",
    "x = = 1",
    "import json, re, decimal, random, uuid\n[uuid.uuid4().hex, json.dumps(len(L))]",
    "try: bytearray(99 << 20)\nexcept MemoryError: print('caught')",
    "def f(): f()\ntry: f()\nexcept RecursionError: print('caught')",
)


class SingleInstanceGuest:
    """A guest with one instance."""

    language = Language.PYTHON

    def __init__(self, guest: PythonGuest, instance: PythonInstance) -> None:
        self.build, self.start, self._instances = guest.build, guest.start, [instance]

    def instance(self) -> PythonInstance:
        return self._instances.pop()


def test_state_outside_the_memory_never_changes(engine: wasmtime.Engine, guest: PythonGuest):
    """Of the globals only the stack pointer can change: a rough session leaves it as it was, and
    the lengths of the two tables, too."""
    instance = guest.instance()
    with Sandbox(engine, [SingleInstanceGuest(guest, instance)], KEY, ready=0) as sandbox:
        stage = Stage(sandbox, "rough")
        for code in ROUGH:
            stage.run(code)
        assert len(guest.pristine.globals) == 3 * 4
        assert instance.has_initial_globals


def test_a_component_of_another_layout_is_refused(cache: GuestCache):
    component = cache.component(stub_wasi=True)
    layout = read_layout(component)
    assert len(layout.lifts) == 2
    assert not any(
        read_module(layout.pieces[i]).hidden_mutable_globals for i in LinkPlan(component).used
    )
    section = component.index(layout.modules[-1]) + len(layout.modules[-1])
    with pytest.raises(Failed) as failed:
        read_layout(component[:section] + bytes([8, 3, 1, 0x30, 0]))
    assert failed.value.code == "GUEST_BUILD_FAILED"
