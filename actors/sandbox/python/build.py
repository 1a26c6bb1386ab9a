"""Builds the Python guest on first use and keeps it, so that the second use finds it.

Owns the cache directory: one folder a build, keyed by everything the build depends on; native code
beside it. The directory is private, because native code is run as it lies there. Builders in other
processes are waited for, and nothing half-written is ever visible. What was not used for long goes
(``kept_files``), so an old build is here for a month and in a realm's blob store for good.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha3_256
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import IO, Final

import wasmtime
from wasmtime.component import Component

from rookery.actors.sandbox.python.file_cache import FileCache
from rookery.schemas.errors import Failed, Refused

__all__ = ["GuestCache", "Progress", "cache_folder", "source_key", "write_stderr"]

Progress = Callable[[str], None]

_GUEST_FOLDER: Final = Path(__file__).with_name("guest")
_WORLD = "sandbox"
_ZONES_FILE: Final = "system/zones.json"
"""Where the guest looks for them (``guest/system/zones.py``)."""
_COMPONENTIZE = "import componentize_py; componentize_py.script()"


def write_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where this user's builds are kept."""
    root = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~"), ".cache")
    return Path(root).expanduser() / "rookery" / "sandbox"


class GuestCache:
    """Builds and native code in one private folder."""

    def __init__(self, folder: Path, progress: Progress = write_stderr) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise Refused(
                "CONFIG_INVALID",
                f"{folder} holds native code, so nobody else may own it or write into it",
                hint=f"chmod 700 {folder}",
            )
        self._folder, self._progress = folder, progress
        self._files = FileCache(folder)
        self._adopted: Path | None = None

    def component(self, *, stub_wasi: bool) -> bytes:
        """The guest as a component; ``stub_wasi`` for the form whose modules can be linked."""
        if stub_wasi and self._adopted is not None:
            return self._adopted.read_bytes()
        key = source_key(stub_wasi=stub_wasi)
        path = self._own_build(key)
        if not self._files.lock(path):
            with self._locked(key):
                if not self._files.lock(path):
                    with self._report("building the Python guest, once for this user"):
                        self._files.write(path, _build(stub_wasi))
        return path.read_bytes()

    def adopt(self, component: bytes) -> None:
        """Use a build that was made elsewhere from the same sources: snapshots travel only
        between nodes that run the same build, and no two builds are the same. This cache gives no
        other from now on; those of other processes, which may serve other realms, do not change."""
        key = source_key(stub_wasi=True)
        path = self._adopted_build(key, sha3_256(component).hexdigest())
        self._files.write(path, component)
        self._adopted = path

    def adopt_stored(self, build: str) -> bool:
        """``adopt`` the build of this digest if it is here; whether it is."""
        key = source_key(stub_wasi=True)
        for path in (self._adopted_build(key, build), self._own_build(key)):
            if self._files.lock(path) and sha3_256(path.read_bytes()).hexdigest() == build:
                self._adopted = path
                return True
        return False

    def store(self, piece: bytes) -> None:
        """Have a build at hand, of any language, for sessions that began with it."""
        path = self._folder / "kept" / f"{sha3_256(piece).hexdigest()}.build"
        if not self._files.lock(path):
            self._files.write(path, piece)

    def find(self, build: str) -> bytes | None:
        """The build of this digest, whatever it was made from and whoever uses it."""
        named = [*self._folder.glob("kept/*.build"), *self._folder.glob("*/*.wasm")]
        for path in named:
            if path.stem in (build, "guest"):
                with suppress(FileNotFoundError):  # Somebody prunes.
                    status = path.stat()
                    if _digest_of(path, status.st_mtime_ns, status.st_size) != build:
                        continue
                    piece = path.read_bytes()
                    if sha3_256(piece).hexdigest() == build and self._files.lock(path):
                        return piece
        return None

    def modules(
        self, engine: wasmtime.Engine, sources: Mapping[int, bytes], language: str = "Python"
    ) -> dict[int, wasmtime.Module]:
        """Core modules as native code, compiled unless code that fits is there."""
        paths = {number: self._native_path(source) for number, source in sources.items()}
        found = {number: self._load(engine, path) for number, path in paths.items()}
        if None in found.values():
            with self._locked("native"), self._report(f"compiling the {language} guest"):
                for number, source in sources.items():
                    if (module := self._load(engine, paths[number])) is None:
                        module = wasmtime.Module(engine, source)
                        self._files.write(paths[number], bytes(module.serialize()))
                    found[number] = module
        return {number: module for number, module in found.items() if module is not None}

    def native_component(self, engine: wasmtime.Engine, source: bytes) -> Component:
        """The whole component as native code, for the fallback."""
        path = self._native_path(source)
        if self._files.lock(path):
            try:
                return Component.deserialize_file(engine, str(path))
            except wasmtime.WasmtimeError:
                pass  # Of another engine: compiled anew below.
        with self._locked("native"), self._report("compiling the Python guest"):
            component = Component(engine, source)
            self._files.write(path, bytes(component.serialize()))
        return component

    def _own_build(self, key: str) -> Path:
        return self._folder / key / "guest.wasm"

    def _adopted_build(self, key: str, build: str) -> Path:
        return self._folder / key / f"{build}.wasm"

    def _native_path(self, source: bytes) -> Path:
        name = sha3_256(source).hexdigest()[:32]
        return self._folder / f"native-{version('wasmtime')}" / f"{name}.cwasm"

    def _load(self, engine: wasmtime.Engine, path: Path) -> wasmtime.Module | None:
        """``None`` if there is none, or one of another engine or processor."""
        if not self._files.lock(path):
            return None
        try:
            return wasmtime.Module.deserialize_file(engine, str(path))
        except wasmtime.WasmtimeError:
            return None

    @contextmanager
    def _locked(self, name: str) -> Iterator[IO[str]]:
        """One process at a time; the lock ends with its holder, however that ends."""
        with (self._folder / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    @contextmanager
    def _report(self, what: str) -> Iterator[None]:
        self._progress(f"rookery: {what} (some 10 s) ... ")
        try:
            yield
        except BaseException:
            self._progress("failed\n")
            raise
        self._progress("done\n")


@lru_cache(maxsize=256)
def _digest_of(path: Path, _mtime_ns: int, _size: int) -> str:
    """A user's cache may hold dozens of builds of 27 MB, none of them the one that is asked for."""
    return sha3_256(path.read_bytes()).hexdigest()


def _source_files() -> list[Path]:
    return sorted(path for path in _GUEST_FOLDER.rglob("*") if path.suffix in (".py", ".wit"))


def source_key(*, stub_wasi: bool) -> str:
    """Everything a build depends on, in one word."""
    made_with = [version(package) for package in ("componentize-py", "tzdata")]
    digest = sha3_256(f"{made_with} {stub_wasi}".encode())
    for path in _source_files():
        name = path.relative_to(_GUEST_FOLDER).as_posix()
        digest.update(f"\0{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def _zones() -> str:
    """Every time zone by name, compressed, as JSON."""
    names = files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()
    zones = files("tzdata").joinpath("zoneinfo")
    packed = {name: zlib.compress(zones.joinpath(name).read_bytes(), 9) for name in sorted(names)}
    return json.dumps({name: base64.b64encode(data).decode() for name, data in packed.items()})


def _build(stub_wasi: bool) -> bytes:
    """Builds are not reproducible: one build is made, kept, and known by its digest."""
    with tempfile.TemporaryDirectory(prefix="rookery-guest-") as scratch:
        program = Path(scratch, "guest")
        for path in _source_files():
            copy = program / path.relative_to(_GUEST_FOLDER)
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(path, copy)
        (program / _ZONES_FILE).write_text(_zones(), encoding="utf-8")
        built = Path(scratch, "guest.wasm")
        command: list[str | Path] = [sys.executable, "-c", _COMPONENTIZE, "-q"]
        command += ["-d", program / "world.wit"]
        command += ["-w", _WORLD, "componentize", *(["-s"] if stub_wasi else [])]
        command += ["-p", scratch, "guest.start", "-o", built]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.partition("Stack backtrace")[0].strip()
            raise Failed("GUEST_BUILD_FAILED", f"componentize-py failed: {said[-2000:]}")
        return built.read_bytes()
