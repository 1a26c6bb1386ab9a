"""The keys of a realm's secrets: where they are, their rotation, and what a node seals by them."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from rookery.bus.clock import entropy
from rookery.bus.ports import Secrets, ValueSeal
from rookery.bus.sealed_secrets import KEY_BYTES, KeyRing, RingSeal, SealedSecrets
from rookery.ops.config import Config
from rookery.ops.server import ConfiguredServer
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.protection.bindings import SecretSource

__all__ = [
    "SNAPSHOTS",
    "ConfiguredKeys",
    "NodeSecrets",
    "SecretsRotation",
    "finish_rotation",
    "open_secrets",
    "write_durably",
]

# --- sealing keys ---------------------------------------------------------------------------------

# ``node.sealing_key`` names a file, or ``env:NAME``, ``command:WORDS`` or ``credential:NAME``, the
# last one below ``$CREDENTIALS_DIRECTORY`` of systemd. A file is made at the first start of a realm
# without secrets; nothing else is, and no key is ever made over secrets that another one seals.


_KINDS: Final = ("env:", "command:", "credential:")
"""Of origins other than a file."""
_FOLDER: Final = "CREDENTIALS_DIRECTORY"
_TIMEOUT_S: Final = 10.0


class ConfiguredKeys:
    """The port ``SealingKeys`` with the keys of the configuration."""

    def __init__(self, setting: str, default: Path, environ: Mapping[str, str]) -> None:
        self._kind = next((kind for kind in _KINDS if setting.startswith(kind)), "")
        self._argument, self._environ = setting.removeprefix(self._kind), environ
        self._path = Path(setting).expanduser() if setting and not self._kind else default
        self._ring: KeyRing | None = None
        self._stamp: tuple[int, int] | None = None
        if self._kind and not self._argument.strip():
            raise Refused("CONFIG_INVALID", f"node.sealing_key = {setting!r} names nothing")

    @classmethod
    def of(cls, config: Config) -> ConfiguredKeys:
        """The keys that the configuration names; nothing is read yet."""
        setting = config.node.sealing_key
        return cls(setting, ConfiguredServer(config).sealing_key_path, os.environ)

    @property
    def origin(self) -> str:
        """In words without secrets; a command's arguments may have one."""
        match self._kind:
            case "":
                return str(self._path)
            case "env:":
                return f"the environment variable {self._argument}"
            case "command:":
                return f"the output of {self._argument.split()[0]}"
            case _:
                return f"the systemd credential {self._argument}"

    @property
    def is_file(self) -> bool:
        """Whether Rookery itself may make and change the keys."""
        return not self._kind

    @property
    def exists(self) -> bool:
        return not self.is_file or self._path.exists()

    @property
    def ring(self) -> KeyRing:
        if self._ring is None:
            self._ring = self.read()
        return self._ring

    async def refresh(self) -> KeyRing:
        """Only a file changes while a node runs."""
        if self.is_file and self._ring is not None and _stamp(self._path) != self._stamp:
            self._ring = await asyncio.to_thread(self.read)
        return self.ring

    def read(self) -> KeyRing:
        """The keys now; ``SEALING_KEY_MISSING``, ``SEALING_KEY_INVALID``."""
        stamp, text = _stamp(self._path), self._text()
        try:
            ring = KeyRing.parse(text)
        except ValueError:
            raise self._invalid(f"its lines are not keys of {KEY_BYTES} bytes in hex") from None
        self._ring, self._stamp = ring, stamp
        return ring

    def create(self) -> None:
        """Make the file with a first key, unless another process was first."""
        self._write(KeyRing([entropy(KEY_BYTES)]), replacing=False)

    def replace(self, ring: KeyRing) -> None:
        """Replace the keys in the file, at once and durably."""
        self._write(ring, replacing=True)
        self.read()

    def is_rotating(self) -> bool:
        """Whether a rotation of the file is in progress, or was interrupted. A file with a key that
        was appended by hand is rotated by a command only: another node may lack that key."""
        return self.is_file and self._mark.exists()

    @property
    def _mark(self) -> Path:
        return self._path.with_name(f".{self._path.name}.rotation")

    def begin_rotation(self) -> None:
        """Leave a mark, by which a node finishes the rotation if this process is killed."""
        if self.is_file and not self._mark.exists():
            write_durably(self._mark, b"")
            _sync_folder(self._path.parent)

    def end_rotation(self) -> None:
        """Remove the mark, after the last change."""
        if self.is_file:
            self._mark.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude every other rotation of the file: of two new keys, one would be lost."""
        if not self.is_file:
            yield
            return
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise Refused("CONFLICT", f"another rotation of {self.origin} is in progress") from None
        finally:
            os.close(folder)

    def _text(self) -> str:
        match self._kind:
            case "":
                return self._file_text(self._path, private=True)
            case "env:":
                if not (text := self._environ.get(self._argument, "")):
                    raise self._missing(f"set {self._argument}")
                return text
            case "command:":
                return self._output()
            case _:
                if not (folder := self._environ.get(_FOLDER, "")):
                    raise self._missing(f"LoadCredential={self._argument}:FILE in the unit")
                return self._file_text(Path(folder, self._argument), private=False)

    def _file_text(self, path: Path, *, private: bool) -> str:
        try:
            mode, text = path.stat().st_mode, path.read_text(encoding="ascii")
        except FileNotFoundError:
            raise self._missing("copy the file of another node of the realm") from None
        except (OSError, ValueError) as error:
            raise self._invalid(f"it cannot be read: {type(error).__name__}") from None
        if private and mode & 0o077:
            raise self._invalid("others may read it", hint=f"chmod 600 {path}")
        return text

    def _output(self) -> str:
        try:
            ran = subprocess.run(
                shlex.split(self._argument),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=True,
            )
            return ran.stdout.decode("ascii")
        except subprocess.CalledProcessError as error:
            raise self._invalid(f"the command ended with {error.returncode}") from None
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise self._invalid(f"the command failed: {type(error).__name__}") from None

    def _write(self, ring: KeyRing, *, replacing: bool) -> None:
        """By a draft, so that no reader and no crash sees half a file."""
        path = self._path
        name = "next" if replacing else entropy(6).hex()  # Of one rotation, or of many starts.
        draft = path.with_name(f".{path.name}.{name}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)
            try:
                write_durably(draft, ring.text.encode())
                if replacing:
                    draft.replace(path)
                else:
                    os.link(draft, path)
            except FileExistsError:
                """Another process was first."""
            finally:
                draft.unlink(missing_ok=True)
            _sync_folder(path.parent)
        except OSError as error:
            raise self._invalid(error.strerror or type(error).__name__) from None

    def _missing(self, hint: str) -> Refused:
        return Refused(
            "SEALING_KEY_MISSING",
            f"the key of the realm's secrets, {self.origin}, is missing",
            hint=hint,
        )

    def _invalid(self, why: str, hint: str = "") -> Refused:
        return Refused(
            "SEALING_KEY_INVALID",
            f"the key of the realm's secrets, {self.origin}: {why}",
            hint=hint,
        )


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes with every replacement of a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def write_durably(path: Path, body: bytes) -> None:
    """Write a new file that only its owner may read: a crash must not leave an empty key."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


async def open_secrets(store: Secrets, realm: str, keys: ConfiguredKeys) -> SealedSecrets:
    """The realm's secrets; the first start of a realm makes the key file."""
    if not keys.exists and not any(generation for _, generation in await store.list()):
        await asyncio.to_thread(keys.create)
    await asyncio.to_thread(keys.read)
    return SealedSecrets(store, realm, keys, entropy)


class SecretsRotation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rotation."""

    key_id: str
    """The key of all secrets now."""
    removed: tuple[str, ...]
    """The keys that the file no longer has."""
    resealed: int

    @staticmethod
    async def perform(sealed: SealedSecrets, keys: ConfiguredKeys) -> SecretsRotation:
        """Seal every secret with a new key, and remove the older ones last. A file with several
        keys is that of a rotation which did not end: it goes on, and makes no further key."""
        await asyncio.to_thread(keys.read)
        await sealed.require_keys()
        with keys.locked():
            ring = await asyncio.to_thread(keys.read)
            if len(ring.ids) == 1:
                ring = await asyncio.to_thread(_add_key, keys, ring)
            return await _reseal_all(sealed, keys, ring)


async def finish_rotation(sealed: SealedSecrets, keys: ConfiguredKeys) -> SecretsRotation | None:
    """Finish a rotation whose process was killed; ``None`` if there is none, or if it goes on."""
    if not keys.is_rotating():
        return None
    try:
        with keys.locked():
            if not keys.is_rotating():
                return None
            return await _reseal_all(sealed, keys, await asyncio.to_thread(keys.read))
    except Refused as refusal:
        if refusal.code == "CONFLICT":
            return None
        raise


async def _reseal_all(
    sealed: SealedSecrets, keys: ConfiguredKeys, ring: KeyRing
) -> SecretsRotation:
    resealed = 0
    while count := await sealed.reseal():
        resealed += count
    removed = ring.ids[:-1] if keys.is_file else ()
    if removed:
        await asyncio.to_thread(keys.replace, ring.newest_alone())
    await asyncio.to_thread(keys.end_rotation)
    return SecretsRotation(key_id=ring.newest, removed=removed, resealed=resealed)


def _add_key(keys: ConfiguredKeys, ring: KeyRing) -> KeyRing:
    if not keys.is_file:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{keys.origin} has one key, and Rookery cannot add one there",
            hint="append a line: openssl rand -hex 32; start every node again, then rotate",
        )
    keys.begin_rotation()
    ring = ring.with_key(entropy(KEY_BYTES))
    keys.replace(ring)
    return ring


# --- node secrets ---------------------------------------------------------------------------------

# The secrets that a node itself uses: the keys of session images and of sensitive values.


log = logging.getLogger(__name__)

SNAPSHOTS: Final = "snapshots"
"""It seals the session images of the realm."""
VALUES: Final = "values"
"""A ring of keys, which seal sensitive values in facts."""
CHECK_S: Final = 2.0
OPERATORS: Final = "secret/"
"""Before the names of secrets that people store; nodes use others."""


class NodeSecrets:
    """Read once at the start of a node; lives on the bus's loop."""

    def __init__(
        self, keys: ConfiguredKeys, sealed: SealedSecrets, snapshots: bytes, values: KeyRing
    ) -> None:
        self._keys, self._sealed = keys, sealed
        self.snapshots, self.values = snapshots, values
        self.unavailable_reason = ""
        """Why this node can open no secret now."""

    @classmethod
    async def open(cls, secrets: Secrets, realm: str, keys: ConfiguredKeys) -> NodeSecrets:
        """Open the secrets, or make them in a new realm. ``SEALING_KEY_MISSING`` if another key
        seals them: of nodes that begin a realm together with different keys, one is refused."""
        began_with = keys.ring if keys.exists else None
        sealed = await open_secrets(secrets, realm, keys)
        snapshots = await sealed.get_or_create(SNAPSHOTS, entropy(KEY_BYTES))
        fresh = entropy(KEY_BYTES)
        # An older version sealed values with the keys of the file.
        proposed = KeyRing([fresh]) if began_with is None else began_with.with_key(fresh)
        values = await sealed.get_or_create(VALUES, proposed.text.encode())
        return cls(keys, sealed, snapshots, KeyRing.parse(values.decode()))

    @staticmethod
    async def read_value_seal(sealed: SealedSecrets, realm: str) -> ValueSeal:
        """What seals values for facts, without a node. Before the first node of a realm there is no
        key yet."""
        found = await sealed.get(VALUES)
        if found is None:
            raise Refused("SEALING_KEY_MISSING", "the realm has no key yet", hint="rookery up")
        return RingSeal(KeyRing.parse(found.decode()), realm, entropy)

    @staticmethod
    async def read_snapshot_key(sealed: SealedSecrets) -> bytes | None:
        """What seals the session images of the realm, without a node."""
        return await sealed.get(SNAPSHOTS)

    @staticmethod
    def stored_name(name: str) -> str:
        """How the realm's secrets call one that people store; ``Refused`` for an invalid name."""
        try:
            SecretSource.parse(f"secret:{name}")
        except ValueError as error:
            raise Refused("INVALID_ARGUMENT", f"{name[:80]!r}: {error}") from None
        return f"{OPERATORS}{name}"

    @staticmethod
    def shown_name(stored: str) -> str:
        """The name that people and bindings use."""
        is_operators = stored.startswith(OPERATORS)
        return f"secret:{stored.removeprefix(OPERATORS)}" if is_operators else stored

    @property
    def sealed(self) -> SealedSecrets:
        """All secrets of the realm."""
        return self._sealed

    async def read_stored(self, name: str) -> bytes | None:
        """The secret that ``rookery secrets set NAME`` stored last."""
        found = await self._sealed.newest(self.stored_name(name))
        return None if found is None else found[1]

    async def watch(self) -> None:
        """Check that the key at hand still opens secrets, until cancelled: another node may have
        rotated it. A rotation whose process was killed is finished here."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.check()
            if not self.unavailable_reason:
                await self.finish_rotation()

    async def finish_rotation(self) -> None:
        """Finish a rotation of the key file whose process was killed, if there is one."""
        try:
            if done := await finish_rotation(self._sealed, self._keys):
                log.info("interrupted rotation finished", extra={"resealed": done.resealed})
        except CodedError as error:
            log.warning("interrupted rotation not finished", extra={"code": error.code})

    async def check(self) -> None:
        reason = ""
        try:
            await self._keys.refresh()
            await self._sealed.get(SNAPSHOTS)
        except Refused as refusal:
            reason = f"{refusal.code}: {refusal.message}"
        except Failed as failure:
            if failure.code == "SERVER_UNREACHABLE":
                return  # Another probe reports it.
            reason = f"{failure.code}: {failure.message}"
        if reason and reason != self.unavailable_reason:
            log.error("the realm's secrets cannot be opened", extra={"why": reason})
        self.unavailable_reason = reason
