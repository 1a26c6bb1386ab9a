"""The TypeScript guest: programs without their types, in an engine whose memory is in reach.

Owns the way a step travels in and out. Sessions, limits and what the host answers to tool calls are
not its business, and neither is how types are found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from functools import cached_property
from typing import NamedTuple

import msgspec
import wasmtime

from rookery.actors.sandbox.contract import (
    CheckStep,
    Host,
    StartStep,
    Step,
    StepEnded,
)
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.runtime.image_guest import ImageInstance
from rookery.actors.sandbox.runtime.memory_image import Pristine
from rookery.actors.sandbox.typescript.build import JavaScriptBuild
from rookery.actors.sandbox.typescript.engine import JavaScriptEngine, JavaScriptStore
from rookery.actors.sandbox.typescript.errors import read_reply, to_step
from rookery.actors.sandbox.typescript.syntax import WatchFunction
from rookery.actors.sandbox.typescript.transformer import Transformer
from rookery.actors.sandbox.typescript.translation import Script, SourceRefused, translate
from rookery.schemas.run import Language

__all__ = ["JavaScriptGuest", "JavaScriptInstance"]

_encode = msgspec.json.encode


class _Resumption(msgspec.Struct, frozen=True, tag="resume", tag_field="step"):
    """As in the contract; the answers go on as they are."""

    replies: msgspec.Raw


class _Anything:
    """What a program that was checked before may call."""

    def __contains__(self, _name: object) -> bool:
        return True


class _Compiled(NamedTuple):
    engine: JavaScriptEngine
    transformer: Transformer
    edition: int


_decode = msgspec.json.Decoder(StartStep | CheckStep | _Resumption).decode


class JavaScriptGuest:
    """Once a process and build. Nothing is compiled before the first instance is wanted."""

    language = Language.TYPESCRIPT

    def __init__(
        self,
        engine: wasmtime.Engine,
        cache: GuestCache,
        read: Callable[[], JavaScriptBuild] = JavaScriptBuild.installed,
    ) -> None:
        """Of the own build, or of the one that is read."""
        self._engine, self._cache, self._load_build = engine, cache, read
        self._compiling = threading.RLock()
        self._parts: _Compiled | None = None
        self._pristine: Pristine | None = None

    @cached_property
    def build(self) -> str:
        return self._load_build().digest

    @property
    def start(self) -> int:
        return self.pristine.checksum

    def instance(self) -> JavaScriptInstance:
        return JavaScriptInstance(self)

    def transform(self, source: bytes, watch: WatchFunction) -> str:
        return self._compile().transformer.transform(source, watch)

    def translate(self, source: str, tools: Container[str], watch: WatchFunction) -> Script:
        """As the edition of this build does it."""
        return translate(source, tools, self.transform, watch, edition=self._compile().edition)

    def new_store(self) -> JavaScriptStore:
        return JavaScriptStore(self._compile().engine)

    @property
    def pristine(self) -> Pristine:
        with self._compiling:
            if self._pristine is None:
                self._pristine = Pristine(self.new_store())
            return self._pristine

    def _compile(self) -> _Compiled:
        with self._compiling:
            if self._parts is None:
                made = self._load_build()
                self._cache.store(made.piece)
                sources = {0: made.engine, 1: made.transformer}
                modules = self._cache.modules(self._engine, sources, "TypeScript")
                engine = JavaScriptEngine(self._engine, modules[0], made.prelude, made.parts)
                JavaScriptStore(engine).prove_limits()
                self._parts = _Compiled(engine, Transformer(self._engine, modules[1]), made.edition)
            return self._parts


class JavaScriptInstance(ImageInstance[JavaScriptStore]):
    """One interpreter. All it knows is in its memory; the script is a shortcut to it."""

    _guest: JavaScriptGuest

    def __init__(self, guest: JavaScriptGuest) -> None:
        super().__init__(guest)
        self._script: Script | None = None

    def step(self, request: bytes, host: Host) -> Step:
        machine = self._wasm_store
        machine.host, machine.watch = host, host.watch
        machine.refuel()
        try:
            return self._step(request, host)
        except SourceRefused as refused:
            return StepEnded(error=refused.error)
        finally:
            self.fuel_used = machine.fuel_used

    def _step(self, request: bytes, host: Host) -> Step:
        asked = _decode(request)
        if isinstance(asked, StartStep):
            return self._run(asked, host)
        if isinstance(asked, CheckStep):
            return self._check(asked, host)
        self._wasm_store.call_method("settle", bytes(asked.replies).decode())
        return self._pump(host)

    def _run(self, program: StartStep, host: Host) -> Step:
        machine = self._wasm_store
        script = self._guest.translate(program.code, program.tools, host.watch)
        self._script = script
        begin = {
            "tools": _encode(program.tools).decode(),
            "inputs": program.inputs,
            "assigned": script.assigned,
            "renewed": script.renewed,
            "last": script.ends_with_value,
            "source": program.code,
        }
        if problem := machine.call_method("begin", _encode(begin).decode()):
            return self._read_reply(problem, host)
        machine.frames_left = program.depth
        machine.name_next_script()
        begun, handle = machine.evaluate(f"\n{script.text}")
        if not begun:
            return self._read_reply(machine.call_with_handle("refuse", handle), host)
        machine.call_with_handle("watch", handle)
        return self._pump(host)

    def _check(self, check: CheckStep, host: Host) -> Step:
        script = self._guest.translate(check.code, check.tools, host.watch)
        self._script = script
        self._wasm_store.name_next_script()
        error = self._wasm_store.compile(f"\n{script.text}")
        return (
            StepEnded()
            if error is None
            else self._read_reply(self._wasm_store.call_with_handle("refuse", error), host)
        )

    def _pump(self, host: Host) -> Step:
        """Until the program ends or waits for something."""
        while True:
            self._wasm_store.run_jobs()
            if reply := self._wasm_store.call_method("pump"):
                return self._read_reply(reply, host)
            self._wasm_store.run_timer()

    def _read_reply(self, reply: str, host: Host) -> Step:
        said = read_reply(reply)
        if said.error is not None and self._script is None:  # The run began elsewhere.
            self._script = self._guest.translate(said.source, _Anything(), host.watch)
        return to_step(said, self._script, self._wasm_store.script_name)
