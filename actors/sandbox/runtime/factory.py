"""Opens a sandbox: engine, cache and guests, each after a self-test.

A build other than the own one comes from the cache or from ``fetch``, by its digest, and must pass
the same self-test.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import msgspec
import wasmtime

from rookery.actors.sandbox.contract import Guest, ProgramCall, StartStep, StepEnded, ToolResult
from rookery.actors.sandbox.python.build import GuestCache, Progress, cache_folder, write_stderr
from rookery.actors.sandbox.python.fallback.component_guest import ComponentGuest
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime.guest_registry import no_other_builds
from rookery.actors.sandbox.runtime.image_guest import SilentHost
from rookery.actors.sandbox.runtime.suspension import complete
from rookery.actors.sandbox.runtime.wasm import Engine, GuestStopped, make_engine
from rookery.actors.sandbox.sandbox import Sandbox
from rookery.actors.sandbox.typescript.build import JavaScriptBuild
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.schemas.calls import ToolFault
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.run import Language

__all__ = ["answering", "open_python_guest", "open_sandbox"]

_SELF_TEST_PROGRAMS: Final = {
    Language.PYTHON: "n = 41\ndef more(): return n + 1",
    Language.TYPESCRIPT: "let n: number = 41; function more(): number { return n + 1 }",
}
FetchBuild = Callable[[str], bytes | None]
"""Fetches the build of this digest from where builds are published; ``None`` if missing."""


def open_sandbox(
    key: bytes,
    cache: GuestCache | None = None,
    fetch: FetchBuild = lambda _build: None,
    *,
    has_fibers: bool = True,
    live_mb_max: int = 2048,
) -> Sandbox:
    """Open a sandbox. The first one of a user builds the guest, which takes some 20 s. Without
    ``has_fibers`` a guest that waits for a synchronous call blocks its thread. ``live_mb_max``:
    what programs that wait may hold before no other run begins."""
    engine = make_engine(has_fibers=has_fibers)
    cache = cache or GuestCache(cache_folder(os.environ))
    guests: list[Guest] = [
        open_python_guest(engine, cache, write_stderr),
        JavaScriptGuest(engine, cache),
    ]

    def load(language: Language, build: str) -> Guest:
        return _other_guest(engine, cache, fetch, language, build)

    return Sandbox(engine, guests, key, live_mb_max=live_mb_max, load=load)


def open_python_guest(engine: Engine, cache: GuestCache, progress: Progress) -> Guest:
    """The linked guest, or the component if linking fails; that one resumes more slowly."""
    try:
        guest = PythonGuest(engine, cache)
        _self_test(guest)
    except (Failed, GuestStopped, LookupError, wasmtime.WasmtimeError) as error:
        progress(f"rookery: the Python guest cannot be linked ({error}); using the component\n")
        return ComponentGuest(engine, cache)
    return guest


def _other_guest(
    engine: Engine, cache: GuestCache, fetch: FetchBuild, language: Language, build: str
) -> Guest:
    """The guest of another build, for sessions that began with it."""
    piece = cache.find(build)
    if piece is None:
        piece = fetch(build)
        if piece is None:
            return no_other_builds(language, build)
        cache.store(piece)
    guest: PythonGuest | JavaScriptGuest
    try:
        if language is Language.TYPESCRIPT:
            made = JavaScriptBuild.read(piece)
            guest = JavaScriptGuest(engine, cache, lambda: made)
        else:
            guest = PythonGuest(engine, cache, piece)
        _self_test(guest)
    except (Failed, GuestStopped, LookupError, wasmtime.WasmtimeError) as error:
        raise Refused(
            "SNAPSHOT_FOREIGN_BUILD",
            f"the {language} guest {build[:16]} does not work here: {error}",
            hint=f"continue the session on a node whose own guest build is {build}",
        ) from None
    return guest


def answering(functions: dict[str, Callable[..., Any]]) -> Callable[[ProgramCall], ToolResult]:
    """Answer calls by plain functions; a program can catch the errors that they raise."""

    def answer(call: ProgramCall) -> ToolResult:
        try:
            return ToolResult(functions[call.name](*call.args, **call.kwargs))
        except CodedError as error:
            return ToolResult(error=ToolFault(error.code, error.message))
        except Exception as error:
            return ToolResult(error=ToolFault("TOOL_ERROR", f"{type(error).__name__}: {error}"))

    return answer


def _self_test(guest: PythonGuest | JavaScriptGuest) -> None:
    """Check that an image carries the state of one instance into another, that nothing but the
    memory changed, and that a reset instance is a new one."""
    first, second = guest.instance(), guest.instance()
    try:
        defining = _program(_SELF_TEST_PROGRAMS[guest.language])
        _expect(complete(first.step(defining, SilentHost())), None)
        second.load(first.copy_memory()())
        _expect(complete(second.step(_program("more()"), SilentHost())), 42)
        if not first.has_initial_globals:
            raise Failed("GUEST_BUILD_FAILED", "the guest keeps state outside its memory")
        if first.reset() and not first.is_new:
            raise Failed("GUEST_BUILD_FAILED", "an instance cannot be reset")
    finally:
        first.close()
        second.close()


def _program(code: str) -> bytes:
    return msgspec.json.encode(StartStep(code=code, inputs={}, tools={}, depth=100))


def _expect(step: object, value: object) -> None:
    if not isinstance(step, StepEnded) or (step.value, step.error) != (value, None):
        raise Failed("GUEST_BUILD_FAILED", f"the self-test of the guest gave {step}")
