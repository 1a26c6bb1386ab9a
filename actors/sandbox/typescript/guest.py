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
    Check,
    Ended,
    Host,
    Program,
    Step,
)
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.runtime.image_guest import ImagedInstance
from rookery.actors.sandbox.runtime.memory_image import Pristine
from rookery.actors.sandbox.typescript.build import JavaScriptBuild
from rookery.actors.sandbox.typescript.engine import Engine, JavaScriptMachine
from rookery.actors.sandbox.typescript.errors import ended, read_said
from rookery.actors.sandbox.typescript.syntax import Watch
from rookery.actors.sandbox.typescript.transformer import Transformer
from rookery.actors.sandbox.typescript.translation import RefusedSource, Script, translate
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
    engine: Engine
    transformer: Transformer
    edition: int


_decode = msgspec.json.Decoder(Program | Check | _Resumption).decode


class JavaScriptGuest:
    """Once a process and build. Nothing is compiled before the first instance is wanted."""

    language = Language.TYPESCRIPT

    def __init__(
        self,
        engine: wasmtime.Engine,
        cache: GuestCache,
        read: Callable[[], JavaScriptBuild] = JavaScriptBuild.own,
    ) -> None:
        """Of the own build, or of the one that is read."""
        self._engine, self._cache, self._read = engine, cache, read
        self._compiling = threading.RLock()
        self._parts: _Compiled | None = None
        self._pristine: Pristine | None = None

    @cached_property
    def build(self) -> str:
        return self._read().digest

    @property
    def start(self) -> int:
        return self.pristine.checksum

    def instance(self) -> JavaScriptInstance:
        return JavaScriptInstance(self)

    def transform(self, source: bytes, watch: Watch) -> str:
        return self._compiled().transformer.transform(source, watch)

    def translate(self, source: str, tools: Container[str], watch: Watch) -> Script:
        """As the edition of this build does it."""
        return translate(source, tools, self.transform, watch, edition=self._compiled().edition)

    def machine(self) -> JavaScriptMachine:
        return JavaScriptMachine(self._compiled().engine)

    @property
    def pristine(self) -> Pristine:
        with self._compiling:
            if self._pristine is None:
                self._pristine = Pristine(self.machine())
            return self._pristine

    def _compiled(self) -> _Compiled:
        with self._compiling:
            if self._parts is None:
                made = self._read()
                self._cache.keep(made.piece)
                sources = {0: made.engine, 1: made.transformer}
                modules = self._cache.modules(self._engine, sources, "TypeScript")
                engine = Engine(self._engine, modules[0], made.prelude, made.parts)
                JavaScriptMachine(engine).prove_limits()
                self._parts = _Compiled(engine, Transformer(self._engine, modules[1]), made.edition)
            return self._parts


class JavaScriptInstance(ImagedInstance[JavaScriptMachine]):
    """One interpreter. All it knows is in its memory; the script is a shortcut to it."""

    _guest: JavaScriptGuest

    def __init__(self, guest: JavaScriptGuest) -> None:
        super().__init__(guest)
        self._script: Script | None = None

    def step(self, request: bytes, host: Host) -> Step:
        machine = self._machine
        machine.host, machine.watch = host, host.watch
        machine.refuel()
        try:
            return self._step(request, host)
        except RefusedSource as refused:
            return Ended(error=refused.error)
        finally:
            self.fuel_used = machine.fuel_used

    def _step(self, request: bytes, host: Host) -> Step:
        asked = _decode(request)
        if isinstance(asked, Program):
            return self._run(asked, host)
        if isinstance(asked, Check):
            return self._check(asked, host)
        self._machine.ask("settle", bytes(asked.replies).decode())
        return self._pumped(host)

    def _run(self, program: Program, host: Host) -> Step:
        machine = self._machine
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
        if problem := machine.ask("begin", _encode(begin).decode()):
            return self._told(problem, host)
        machine.frames_left = program.depth
        machine.name_next_script()
        begun, handle = machine.evaluate(f"\n{script.text}")
        if not begun:
            return self._told(machine.tell("refuse", handle), host)
        machine.tell("watch", handle)
        return self._pumped(host)

    def _check(self, check: Check, host: Host) -> Step:
        script = self._guest.translate(check.code, check.tools, host.watch)
        self._script = script
        self._machine.name_next_script()
        error = self._machine.compile(f"\n{script.text}")
        return Ended() if error is None else self._told(self._machine.tell("refuse", error), host)

    def _pumped(self, host: Host) -> Step:
        """Until the program ends or waits for something."""
        while True:
            self._machine.work_off()
            if reply := self._machine.ask("pump"):
                return self._told(reply, host)
            self._machine.fire()

    def _told(self, reply: str, host: Host) -> Step:
        said = read_said(reply)
        if said.error is not None and self._script is None:  # The run began elsewhere.
            self._script = self._guest.translate(said.source, _Anything(), host.watch)
        return ended(said, self._script, self._machine.script_name)
