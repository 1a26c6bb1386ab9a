"""The cache removes files that were unused for long, and never a file in use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rookery.actors.sandbox.python import build as guest_build
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.file_cache import UNUSED_S_MAX, FileCache

CHECKOUT = Path(__file__).parents[3]
HOLDER = """
import sys
from pathlib import Path
from rookery.actors.sandbox.python.file_cache import FileCache
path = Path(sys.argv[1])
print(FileCache(path.parent.parent).lock(path), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def files(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path)


def left_by_others(path: Path, days: int = 0) -> Path:
    """A file of an ended process, last used so many days ago."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    age(path, days)
    return path


def age(path: Path, days: int) -> None:
    then = path.stat().st_mtime - days * 86_400
    os.utime(path, (then, then))


def test_a_write_removes_files_unused_for_a_month(files: FileCache, tmp_path: Path):
    assert UNUSED_S_MAX == 30 * 86_400
    old = left_by_others(tmp_path / "a" / "guest.wasm", days=31)
    torn = left_by_others(tmp_path / "a" / "tmp1234", days=31)
    young = left_by_others(tmp_path / "b" / "guest.wasm", days=29)
    lock = left_by_others(tmp_path / "a.lock", days=99)
    files.write(tmp_path / "c" / "guest.wasm", b"new")
    assert [path.exists() for path in (old, torn, young, lock)] == [False, False, True, True]
    assert (tmp_path / "c" / "guest.wasm").read_bytes() == b"new"


def test_using_a_file_renews_its_time(files: FileCache, tmp_path: Path):
    path = left_by_others(tmp_path / "a" / "guest.wasm", days=31)
    before = path.stat().st_mtime
    assert files.lock(path)
    assert path.stat().st_mtime > before + 30 * 86_400


def test_a_file_in_use_is_never_removed(files: FileCache, tmp_path: Path):
    held = left_by_others(tmp_path / "a" / "guest.wasm")
    written = tmp_path / "b" / "guest.wasm"
    files.write(written, b"mine")
    assert files.lock(held)
    assert files.lock(held)
    for path in (held, written):
        age(path, 99)
    files.write(tmp_path / "c" / "guest.wasm", b"new")
    assert held.exists()
    assert written.read_bytes() == b"mine"


def test_a_file_is_in_use_until_its_process_ends(files: FileCache, tmp_path: Path):
    path = left_by_others(tmp_path / "a" / "guest.wasm")
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(
        command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        age(path, 99)
        files.write(tmp_path / "b" / "guest.wasm", b"new")
        assert path.exists()
        other.kill()
    files.write(tmp_path / "c" / "guest.wasm", b"new")
    assert not path.exists()


def test_a_missing_file_cannot_be_locked(files: FileCache, tmp_path: Path):
    assert not files.lock(tmp_path / "a" / "guest.wasm")


def test_a_removed_build_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    builds: list[bytes] = []

    def build(stub_wasi: bool, _wheels: object) -> bytes:
        builds.append(f"build {len(builds)}, {stub_wasi}".encode())
        return builds[-1]

    monkeypatch.setattr(guest_build, "_build", build)
    cache = GuestCache(tmp_path / "cache", lambda _text: None)
    (tmp_path / "cache" / "of an older version").mkdir()
    older = left_by_others(tmp_path / "cache" / "of an older version" / "guest.wasm", days=31)
    assert cache.component(stub_wasi=True) == b"build 0, True"
    assert not older.exists()
    (own,) = (tmp_path / "cache").rglob("guest.wasm")
    age(own, 99)
    assert cache.component(stub_wasi=False) == b"build 1, False"
    assert cache.component(stub_wasi=True) == b"build 0, True"
    own.unlink()
    assert cache.component(stub_wasi=True) == b"build 2, True"
