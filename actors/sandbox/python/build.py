"""Builds the Python guest at first use and caches it.

The cache directory has one folder a build, named after a digest of the build's inputs, and folders
of native code. It is private to the user, because native code in it is executed. One process builds
and the others wait; files are written atomically. ``FileCache`` removes a build that was unused for
30 days; the realm's blob store has it for good.
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
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import file_digest, sha3_256, sha256
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import IO, Final

import msgspec
import wasmtime
from wasmtime.component import Component

from rookery.actors.sandbox.python import constant_globals, function_inliner, module_format
from rookery.actors.sandbox.python.constant_globals import replace_constant_globals
from rookery.actors.sandbox.python.file_cache import FileCache
from rookery.actors.sandbox.python.function_inliner import inline_in_component
from rookery.actors.sandbox.python.packages import (
    Package,
    Wheels,
    build_variables,
    normal_requirements,
    read_package,
    unpack,
)
from rookery.schemas.errors import Failed, Refused

__all__ = ["GuestCache", "Progress", "cache_folder", "source_key", "write_stderr"]

Progress = Callable[[str], None]

_GUEST_FOLDER: Final = Path(__file__).with_name("guest")
_WORLD = "sandbox"
_ZONES_FILE: Final = "system/zones.json"
"""The file that ``guest/system/zones.py`` reads."""
_PACKAGES_FILE: Final = "packages/packages.json"
"""The file that ``guest/system/packages.py`` reads."""
_COMPONENTIZE = "import componentize_py; componentize_py.script()"


def write_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder of this user's builds."""
    root = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~"), ".cache")
    return Path(root).expanduser() / "rookery" / "sandbox"


class GuestCache:
    """Builds and native code in one private folder."""

    def __init__(
        self, folder: Path, progress: Progress = write_stderr, packages: Iterable[str] = ()
    ) -> None:
        """``packages`` are requirements of the Python packages in the guest."""
        self.packages = normal_requirements(packages)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise Refused(
                "CONFIG_INVALID",
                f"{folder} holds native code, so no other user may own it or write to it",
                hint=f"chmod 700 {folder}",
            )
        self._folder, self._progress = folder, progress
        self._files = FileCache(folder)
        self._adopted: Path | None = None
        self._adopted_digest = ""

    def own_build(self) -> tuple[bytes, str]:
        """The own guest as a component whose modules can be linked, and its digest. It is hashed
        once: that takes as long as to link it."""
        component = self.component(stub_wasi=True)
        return component, self._adopted_digest or sha3_256(component).hexdigest()

    def component(self, *, stub_wasi: bool) -> bytes:
        """The guest as a component; with ``stub_wasi`` its modules can be linked."""
        if stub_wasi and self._adopted is not None:
            return self._adopted.read_bytes()
        key = self.key(stub_wasi=stub_wasi)
        path = self._own_build(key)
        if not self._files.lock(path):
            with self._locked(key):
                if not self._files.lock(path):
                    with self._report(self._building()):
                        self._files.write(path, _build(stub_wasi, self._wheels(key)))
        return path.read_bytes()

    def key(self, *, stub_wasi: bool) -> str:
        """A digest of all inputs of a build; two lists of packages have two builds."""
        return source_key(stub_wasi=stub_wasi, packages=self.packages)

    def _building(self) -> str:
        what = "building the Python guest, once for this user"
        return f"{what}, with {', '.join(self.packages)}" if self.packages else what

    def package_list(self) -> list[Package]:
        """The packages of the build, which must be in the cache."""
        found = []
        for path in self._wheels(self.key(stub_wasi=True)):
            with zipfile.ZipFile(path) as archive:
                found.append(read_package(archive))
        return found

    def _wheels(self, key: str) -> list[Path]:
        if not self.packages:
            return []
        return Wheels(self._folder / key, self._files, self.packages).paths()

    def adopt(self, component: bytes) -> None:
        """Use a build of the same sources from another node: snapshots move only between nodes
        that run the same build, and no two builds are equal. This object uses it from now on;
        other processes, which may serve other realms, do not change."""
        build = sha3_256(component).hexdigest()
        path = self._adopted_build(self.key(stub_wasi=True), build)
        self._files.write(path, component)
        self._adopted, self._adopted_digest = path, build

    def adopt_stored(self, build: str) -> bool:
        """``adopt`` the build of this digest if the cache has it; returns whether it has."""
        key = self.key(stub_wasi=True)
        for path in (self._adopted_build(key, build), self._own_build(key)):
            if self._files.lock(path) and _file_digest(path) == build:
                self._adopted, self._adopted_digest = path, build
                return True
        return False

    def store(self, piece: bytes) -> None:
        """Store a build, of any language, for sessions that began with it."""
        path = self._folder / "kept" / f"{sha3_256(piece).hexdigest()}.build"
        if not self._files.lock(path):
            self._files.write(path, piece)

    def made_of(self, source: bytes, make: Callable[[], bytes]) -> bytes:
        """What ``make`` makes, which ``source`` alone decides; made once."""
        path = self._folder / "kept" / f"{sha3_256(source).hexdigest()}.made"
        if not self._files.lock(path):
            self._files.write(path, make())
        return path.read_bytes()

    def find(self, build: str) -> bytes | None:
        """The build of this digest, of any sources."""
        named = [*self._folder.glob("kept/*.build"), *self._folder.glob("*/*.wasm")]
        for path in named:
            if path.stem in (build, "guest"):
                with suppress(FileNotFoundError):  # Another process pruned it.
                    status = path.stat()
                    if _digest_of(path, status.st_mtime_ns, status.st_size) != build:
                        continue
                    piece = path.read_bytes()
                    if sha3_256(piece).hexdigest() == build and self._files.lock(path):
                        return piece
        return None

    def modules(
        self,
        engine: wasmtime.Engine,
        sources: Mapping[int, bytes | memoryview],
        language: str = "Python",
    ) -> dict[int, wasmtime.Module]:
        """Core modules as native code, compiled if the cache has no fitting code."""
        paths = {number: self._native_path(source) for number, source in sources.items()}
        found = {number: self._load(engine, path) for number, path in paths.items()}
        if None in found.values():
            with self._locked("native"), self._report(f"compiling the {language} guest"):
                for number, source in sources.items():
                    if (module := self._load(engine, paths[number])) is None:
                        module = wasmtime.Module(engine, bytes(source))
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
                pass  # Of another engine: compiled again below.
        with self._locked("native"), self._report("compiling the Python guest"):
            component = Component(engine, source)
            self._files.write(path, bytes(component.serialize()))
        return component

    def _own_build(self, key: str) -> Path:
        return self._folder / key / "guest.wasm"

    def _adopted_build(self, key: str, build: str) -> Path:
        return self._folder / key / f"{build}.wasm"

    def _native_path(self, source: bytes | memoryview) -> Path:
        """Named by SHA-256, which processors compute: of all modules in 15 ms instead of 45."""
        name = sha256(source).hexdigest()[:32]
        return self._folder / f"native-{version('wasmtime')}" / f"{name}.cwasm"

    def _load(self, engine: wasmtime.Engine, path: Path) -> wasmtime.Module | None:
        """Load native code; ``None`` if it is missing, or of another engine or processor."""
        if not self._files.lock(path):
            return None
        try:
            return wasmtime.Module.deserialize_file(engine, str(path))
        except wasmtime.WasmtimeError:
            return None

    @contextmanager
    def _locked(self, name: str) -> Iterator[IO[str]]:
        """Lock between processes; the lock ends with its holder."""
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
    return _file_digest(path)


def _file_digest(path: Path) -> str:
    """By pieces: the pages of one buffer of 27 MB take half as long as the digest."""
    with path.open("rb") as file:
        return file_digest(file, "sha3_256").hexdigest()


def _source_files() -> list[Path]:
    return sorted(path for path in _GUEST_FOLDER.rglob("*") if path.suffix in (".py", ".wit"))


def source_key(*, stub_wasi: bool, packages: Sequence[str] = ()) -> str:
    """A digest of all inputs of a build."""
    made_with = [version(package) for package in ("componentize-py", "tzdata")]
    digest = sha3_256(f"{made_with} {stub_wasi} {list(packages)}".encode())
    for module in (constant_globals, function_inliner, module_format):
        digest.update(Path(module.__file__ or "").read_bytes())
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


def _build(stub_wasi: bool, wheels: Sequence[Path] = ()) -> bytes:
    """Build the guest. Builds are not reproducible; each is known by its digest."""
    with tempfile.TemporaryDirectory(prefix="rookery-guest-") as scratch:
        program = Path(scratch, "guest")
        for path in _source_files():
            copy = program / path.relative_to(_GUEST_FOLDER)
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(path, copy)
        (program / _ZONES_FILE).write_text(_zones(), encoding="utf-8")
        if wheels:
            packages = unpack(wheels, program / "packages")
            (program / _PACKAGES_FILE).write_bytes(msgspec.json.encode(packages))
        built = Path(scratch, "guest.wasm")
        command: list[str | Path] = [sys.executable, "-c", _COMPONENTIZE, "-q"]
        command += ["-d", program / "world.wit"]
        command += ["-w", _WORLD, "componentize", *(["-s"] if stub_wasi else [])]
        command += ["-p", scratch, "guest.start", "-o", built]
        done = subprocess.run(
            command,
            cwd=scratch,
            env=build_variables(os.environ),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            stderr = done.stderr.partition("Stack backtrace")[0].strip()
            raise Failed("GUEST_BUILD_FAILED", f"componentize-py failed: {stderr[-2000:]}")
        return inline_in_component(replace_constant_globals(built.read_bytes()))
