"""A session stays on its guest build; other builds are in memory only while in use."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import wasmtime
from msgspec.structs import replace

from rookery.actors.sandbox import Sandbox, ToolResult
from rookery.actors.sandbox.contract import Guest
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime.factory import open_sandbox
from rookery.actors.sandbox.runtime.guest_registry import OTHERS_MAX
from rookery.actors.sandbox.sessions.snapshot import open_snapshot, seal
from rookery.actors.sandbox.typescript.build import JavaScriptBuild
from rookery.actors.sandbox.typescript.translation import EDITION
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Refused
from rookery.schemas.run import Language
from tests.builds import cache_with, own_build, with_section
from tests.sandbox.session_fixture import KEY, NOW_MS, TOOLS, Stage, later

PATIENCE_S = 90.0


class Published:
    """The published builds, and a list of the fetches."""

    def __init__(self, *builds: bytes) -> None:
        self.builds = {digest_bytes(build): build for build in builds}
        self.fetched: list[str] = []

    def __call__(self, build: str) -> bytes | None:
        self.fetched.append(build)
        return self.builds.get(build)


def opened(folder: Path, component: bytes, published: Published) -> Sandbox:
    cache = GuestCache(cache_with(folder, component), pytest.fail)
    return open_sandbox(KEY, cache, published)


def code(refused: pytest.ExceptionInfo[Refused]) -> str:
    return refused.value.code


def test_a_session_continues_with_its_own_build_where_new_sessions_begin_with_another(
    tmp_path: Path,
):
    old, new = own_build(), with_section(own_build(), "new")
    published = Published(old)
    with (
        opened(tmp_path / "old", old, Published()) as before,
        opened(tmp_path / "new", new, published) as after,
    ):
        there = Stage(before, "s")
        there.run("x = [1]")
        there.wait("x.append(await approve(2))", answer=later("approve"))
        after.restore(before.snapshot("s").data, tools=TOOLS)
        here = Stage(after, "s", create=False)
        assert here.resume(answers={1: ToolResult(2)}).status == "ok"
        fresh = Stage(after, "fresh")
        assert (here.value("x"), fresh.value("1 + 1")) == ([1, 2], 2)
        builds = [digest_bytes(old), digest_bytes(new)]
        assert [after.build_of("s"), after.build_of("fresh")] == builds
        assert before.restore(after.snapshot("s").data, tools=TOOLS) == "s"
        assert Stage(before, "s", create=False).value("x") == [1, 2]
        with pytest.raises(Refused) as refused:
            before.restore(after.snapshot("fresh").data, tools=TOOLS)
        assert code(refused) == "SNAPSHOT_FOREIGN_BUILD"
        assert digest_bytes(new) in refused.value.hint
    assert published.fetched == builds[:1]


def test_a_fetched_build_is_cached(tmp_path: Path):
    old, new = own_build(), with_section(own_build(), "new")
    published = Published(old)
    with opened(tmp_path, new, published) as sandbox:
        sandbox.require(Language.PYTHON, digest_bytes(old))
    cache = GuestCache(tmp_path / "rookery" / "sandbox", pytest.fail)
    with open_sandbox(KEY, cache, published) as sandbox:
        sandbox.require(Language.PYTHON, digest_bytes(old))
    assert len(published.fetched) == 1


def begin(sandbox: Sandbox, name: str, build: str) -> Stage:
    """A TypeScript session, rebuilt on this build."""
    typescript = Language.TYPESCRIPT
    sandbox.rebuild(
        name, seed=b"", created_ms=NOW_MS, language=typescript, tools=TOOLS, build=build
    )
    return Stage(sandbox, name, create=False, language=typescript)


def test_a_typescript_session_continues_with_its_own_prelude(tmp_path: Path):
    own = JavaScriptBuild.installed()
    old = replace(own, prelude=f"{own.prelude} // as it was")
    with opened(tmp_path, own_build(), Published(old.piece)) as sandbox:
        session = begin(sandbox, "s", old.digest)
        session.run("const x: number[] = [1]")
        session.wait("x.push(await approve(2)); x", answer=later("approve"))
        sandbox.restore(sandbox.snapshot("s").data, tools=TOOLS)
        assert session.resume(answers={1: ToolResult(2)}).result == [1, 2]
        fresh = Stage(sandbox, "fresh", language=Language.TYPESCRIPT)
        assert fresh.value("1 + 1") == 2
        assert [sandbox.build_of("s"), sandbox.build_of("fresh")] == [old.digest, own.digest]


def test_typescript_of_another_edition_of_its_translation_is_refused(tmp_path: Path):
    newer = replace(JavaScriptBuild.installed(), edition=EDITION + 1)
    with opened(tmp_path, own_build(), Published(newer.piece)) as sandbox:
        with pytest.raises(Refused) as refused:
            begin(sandbox, "s", newer.digest)
        assert code(refused) == "SNAPSHOT_FOREIGN_BUILD"
        assert "edition" in refused.value.message


def test_a_snapshot_with_another_checksum_of_new_instances_is_refused(tmp_path: Path):
    with opened(tmp_path, own_build(), Published()) as sandbox:
        Stage(sandbox, "s").run("x = 1")
        header, saved = open_snapshot(KEY, sandbox.snapshot("s").data, sandbox.require, None)
        assert header.start
        for start, fits in ((0, True), (header.start, True), (header.start ^ 1, False)):
            data = seal(KEY, replace(header, start=start), saved).data
            if fits:
                sandbox.restore(data, tools=TOOLS)
                continue
            with pytest.raises(Refused) as refused:
                sandbox.restore(data, tools=TOOLS)
            assert code(refused) == "SNAPSHOT_FOREIGN_BUILD"


def test_a_build_that_does_not_work_here_is_refused(tmp_path: Path):
    bad = own_build()[:1000]
    with opened(tmp_path, own_build(), Published(bad)) as sandbox:
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                sandbox.require(Language.PYTHON, digest_bytes(bad))
            assert code(refused) == "SNAPSHOT_FOREIGN_BUILD"
        assert Stage(sandbox, "s").value("1") == 1


class OtherBuilds:
    """Other builds of one cache, with a count of those in memory."""

    def __init__(self, engine: wasmtime.Engine, cache: GuestCache) -> None:
        self._engine, self._cache = engine, cache
        self._components = [with_section(own_build(), f"other {n}") for n in range(4)]
        self.builds = [digest_bytes(component) for component in self._components]
        self.loaded: list[weakref.ref[Guest]] = []

    def load(self, _language: Language, build: str) -> Guest:
        component = self._components[self.builds.index(build)]
        guest = PythonGuest(self._engine, self._cache, component)
        self.loaded.append(weakref.ref(guest))
        return guest

    @property
    def in_memory(self) -> int:
        gc.collect()
        return sum(guest() is not None for guest in self.loaded)

    def sessions(self, sandbox: Sandbox) -> list[Stage]:
        """One session on each build."""
        for number, build in enumerate(self.builds):
            sandbox.rebuild(f"of-{number}", seed=b"", created_ms=NOW_MS, build=build, tools=TOOLS)
        return [Stage(sandbox, f"of-{n}", create=False) for n in range(len(self.builds))]


@pytest.fixture
def others(engine: wasmtime.Engine, cache: GuestCache) -> Iterator[OtherBuilds]:
    others = OtherBuilds(engine, cache)
    yield others
    assert others.in_memory == 0


def test_only_a_few_other_builds_are_in_memory_at_once(
    engine: wasmtime.Engine, guest: PythonGuest, others: OtherBuilds
):
    with Sandbox(engine, [guest], KEY, ready=1, load=others.load) as sandbox:
        stages = others.sessions(sandbox)
        for number, stage in enumerate(stages):
            stage.run(f"def f(): return {number}\ng = iter(range(9))")
        for turn in range(2):
            values = [stage.value("[f(), next(g)]") for stage in stages]
            assert values == [[number, turn] for number in range(len(stages))]
        until(lambda: others.in_memory <= OTHERS_MAX)


def test_an_unused_build_is_released_and_its_sessions_are_restored(
    engine: wasmtime.Engine, guest: PythonGuest, others: OtherBuilds
):
    with Sandbox(engine, [guest], KEY, ready=1, load=others.load, unused_s=0.05) as sandbox:
        stage, waiting, *_ = others.sessions(sandbox)
        own = Stage(sandbox, "own")
        own.run("x = 1")
        for _ in range(2):
            stage.run("x = globals().get('x', 0) + 1")
            waiting.wait("n = await approve(1)", answer=later("approve"))
            until(lambda: others.in_memory == 0)
            assert waiting.resume(answers={1: ToolResult(7)}).status == "ok"
        assert [stage.value("x"), waiting.value("n"), own.value("x")] == [2, 7, 1]
        until(lambda: others.in_memory == 0)


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)
