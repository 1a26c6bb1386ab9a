"""Checks of the machine: interpreter, packages, server binary, store directory, disk.

They change nothing. ``server_checks`` examines a running server.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

import msgspec

from rookery.actors.sandbox.runtime import fiber_obstacle
from rookery.bus.credentials import USERS_FILE
from rookery.bus.server import Store, find_server
from rookery.schemas.errors import CodedError, Refused

__all__ = ["CheckVerdict", "Finding", "check_host", "check_store", "failed"]

_FREE_BYTES_LOW = 1 << 30
_FREE_BYTES_TOO_LOW = 64 << 20
_NATS_PY = "2.16."
"""The connection uses private names of this series; a test pins them."""
_PACKAGES = ("rookery", "nats-py", "msgspec", "pykka", "prometheus-client")


class CheckVerdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check, and what to do about it."""

    check: str
    verdict: CheckVerdict = CheckVerdict.OK
    detail: str = ""
    hint: str = ""
    code: str = ""
    """From the table of codes, where programs distinguish findings."""


def failed(check: str, error: CodedError) -> Finding:
    """The finding for ``error``."""
    return Finding(
        check=check,
        verdict=CheckVerdict.FAIL,
        detail=error.message,
        hint=error.hint,
        code=error.code,
    )


def check_host() -> Iterator[Finding]:
    """Check the interpreter and the packages."""
    yield Finding(check="python", detail=f"{platform.python_version()} on {platform.platform()}")
    packages = {name: version(name) for name in _PACKAGES}
    fits = packages["nats-py"].startswith(_NATS_PY)
    yield Finding(
        check="packages",
        verdict=CheckVerdict.OK if fits else CheckVerdict.FAIL,
        detail=", ".join(f"{name} {number}" for name, number in packages.items()),
        hint="" if fits else f"pip install 'nats-py=={_NATS_PY}*'",
    )
    obstacle = fiber_obstacle()
    yield Finding(
        check="fibers",
        verdict=CheckVerdict.WARN if obstacle else CheckVerdict.OK,
        detail=obstacle or "a synchronous call of a program needs no thread",
        hint="programs run all the same; each that waits for a synchronous call blocks a thread"
        if obstacle
        else "",
        code="UNSUPPORTED_FEATURE" if obstacle else "",
    )


def check_store(store: Store) -> Iterator[Finding]:
    """Check what an embedded server needs: a binary, a private directory, disk space, the lock."""
    yield _check_binary()
    yield _check_directory(store.path)
    yield _check_disk(store.path)
    yield _check_lock(store)


def _check_binary() -> Finding:
    try:
        binary = find_server()
    except Refused as error:
        return failed("nats-server", error)
    output = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    return Finding(check="nats-server", detail=f"{output.stdout.strip()} at {binary}")


def _check_directory(path: Path) -> Finding:
    if not path.exists():
        return Finding(check="store", detail=f"{path} will be created by `rookery up`")
    for place in (path / USERS_FILE, *sorted(path.glob("credentials/*")), path):
        mode = place.stat().st_mode & 0o777 if place.exists() else 0
        if mode & 0o077:
            return Finding(
                check="store",
                verdict=CheckVerdict.FAIL if place != path else CheckVerdict.WARN,
                detail=f"{place} has mode {mode:o}: other users of this machine may read it",
                hint=f"chmod {mode & 0o700:o} {place}",
            )
    return Finding(check="store", detail=str(path))


def _check_disk(path: Path) -> Finding:
    existing = next(place for place in (path, *path.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / (1 << 30):.1f} GiB free at {existing}"
    if free >= _FREE_BYTES_LOW:
        return Finding(check="disk", detail=detail)
    return Finding(
        check="disk",
        verdict=CheckVerdict.FAIL if free < _FREE_BYTES_TOO_LOW else CheckVerdict.WARN,
        detail=detail,
        hint="free some space: on a full disk, commands wait",
    )


def _check_lock(store: Store) -> Finding:
    if store.is_locked():
        server = store.running_server()
        holder = f"nats-server {server.pid} at {server.address}" if server else "a starting server"
        return Finding(check="lock", detail=f"held by {holder}")
    left = ", ".join(sorted(path.name for path in store.path.glob("*.ports")))
    return Finding(check="lock", detail=f"free; a killed server left {left}" if left else "free")
