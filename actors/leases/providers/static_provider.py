"""Static credentials: secrets from the vault, a file, the environment or a command."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import stat
import subprocess
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from rookery.actors.daemon_threads import run_on_own_thread
from rookery.actors.leases.provider import (
    Binding,
    LeaseCredential,
    LoginNeeded,
    Outcome,
    Renewed,
    RetryLater,
)
from rookery.schemas.errors import CodedError
from rookery.schemas.protection.bindings import SecretKind, SecretSource, StaticSettings

__all__ = [
    "SECRET_BYTES_MAX",
    "SecretReader",
    "SecretUnavailable",
    "StaticProvider",
    "unavailable_outcome",
]

# --- secret reader --------------------------------------------------------------------------------

# Reads secrets from where the settings of bindings say they are; stores none.
#
# A command runs on a thread of its own, in a process group that ends with its time-out. No secret
# is in an error, and no command gets the environment variables that hold secrets of bindings.


SECRET_BYTES_MAX: Final = 64 << 10

ReadStored: TypeAlias = Callable[[str], Awaitable[bytes | None]]
"""The value of a secret of the realm, by its name; ``None`` if there is none."""


class SecretUnavailable(Exception):
    """A source has no secret now; ``str`` says why, without a secret."""

    def __init__(self, reason: str, *, for_now: bool = False) -> None:
        super().__init__(reason)
        self.for_now = for_now
        """Whether the same source may have it later, without a change by a person."""


class SecretReader:
    """Used on the bus's loop."""

    def __init__(
        self,
        read_stored: ReadStored,
        environ: Mapping[str, str],
        sources: Collection[SecretSource] = (),
    ) -> None:
        """``sources``: those of all bindings; their variables are kept from commands."""
        self._read_stored, self._environ = read_stored, environ
        hidden = {source.name for source in sources if source.kind is SecretKind.ENV}
        self._shown = {name: text for name, text in environ.items() if name not in hidden}

    async def read(self, text: str, timeout_s: float) -> str:
        """The secret of the source ``text``, without a line end; raises ``SecretUnavailable``."""
        source = SecretSource.parse(text)
        try:
            async with asyncio.timeout(timeout_s):
                value = await self._read(source)
        except TimeoutError:
            raise SecretUnavailable(
                f"{source.words} took longer than {timeout_s:g} s", for_now=True
            ) from None
        if len(value) > SECRET_BYTES_MAX:
            raise SecretUnavailable(f"{source.words} has more than {SECRET_BYTES_MAX} bytes")
        try:
            secret = value.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise SecretUnavailable(f"{source.words} is not text in UTF-8") from None
        if not secret:
            raise SecretUnavailable(f"{source.words} is empty")
        return secret

    async def _read(self, source: SecretSource) -> bytes:
        match source.kind:
            case SecretKind.ENV:
                if (text := self._environ.get(source.name)) is None:
                    raise SecretUnavailable(f"{source.words} is not set")
                return text.encode("utf-8", "surrogateescape")
            case SecretKind.FILE:
                return await run_on_own_thread(lambda: _read_file(source))
            case SecretKind.COMMAND:
                return await self._run(source)
            case _:
                return await self._stored(source)

    async def _stored(self, source: SecretSource) -> bytes:
        try:
            value = await self._read_stored(source.name)
        except CodedError as error:
            raise SecretUnavailable(f"{source.words}: {error.code}", for_now=True) from None
        if value is None:
            raise SecretUnavailable(
                f"the realm has no secret {source.name}: rookery secrets set {source.name}"
            )
        return value

    async def _run(self, source: SecretSource) -> bytes:
        command = _Command(source, self._shown)
        try:
            return await run_on_own_thread(command.run)
        finally:
            command.abort()


class _Command:
    """One run of a command."""

    def __init__(self, source: SecretSource, environ: Mapping[str, str]) -> None:
        self._source, self._environ = source, environ
        self._process: subprocess.Popen[bytes] | None = None
        self._is_aborted = False

    def run(self) -> bytes:
        """What it prints. Blocks its thread."""
        words = self._source.words
        try:
            self._process = process = subprocess.Popen(
                shlex.split(self._source.name),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environ,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise SecretUnavailable(f"{words} failed: {type(error).__name__}") from None
        if self._is_aborted:
            self.abort()
        assert process.stdout is not None
        with process.stdout:
            output = process.stdout.read(SECRET_BYTES_MAX + 1)
        if len(output) > SECRET_BYTES_MAX:
            self.abort()
        code = process.wait()
        if code and len(output) <= SECRET_BYTES_MAX:
            raise SecretUnavailable(f"{words} failed: it ended with {code}", for_now=True)
        return output

    def abort(self) -> None:
        """End the command and all it started."""
        self._is_aborted = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _read_file(source: SecretSource) -> bytes:
    try:
        # Not to wait for the writer of a pipe.
        file = os.open(Path(source.name).expanduser(), os.O_RDONLY | os.O_NONBLOCK)
        with open(file, "rb") as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise SecretUnavailable(f"{source.words} is no regular file")
            return opened.read(SECRET_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise SecretUnavailable(f"{source.words} cannot be read: {why}") from None


# --- static provider ------------------------------------------------------------------------------

# A credential that something else renews: an environment variable, a file, a command, a secret of
# the realm. A refresh reads it again.


class StaticProvider:
    """Provider ``static``."""

    def __init__(self, secrets: SecretReader) -> None:
        self._secrets = secrets

    def is_repeatable(self, binding: Binding, credential: LeaseCredential | None) -> bool:
        """Reading changes nothing."""
        del binding, credential
        return True

    async def refresh(
        self, binding: Binding, credential: LeaseCredential | None, *, now: float
    ) -> Outcome:
        del credential
        settings = msgspec.convert(binding.settings, StaticSettings)
        try:
            value = await self._secrets.read(settings.value, settings.timeout_s)
        except SecretUnavailable as unavailable:
            return unavailable_outcome(unavailable)
        expires_at = None if settings.lasts_s is None else int(now) + settings.lasts_s
        return Renewed(LeaseCredential(value=value, scheme=settings.scheme, expires_at=expires_at))


def unavailable_outcome(unavailable: SecretUnavailable) -> RetryLater | LoginNeeded:
    """The outcome of a refresh that needs a secret which its source does not have."""
    reason = str(unavailable)
    return RetryLater(0.0, reason) if unavailable.for_now else LoginNeeded(reason)
