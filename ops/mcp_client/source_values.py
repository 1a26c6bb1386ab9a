"""The values that a configuration writes into the environment or the headers of a server.

Facts have them sealed, or as ``${NAME}`` and ``${NAME:-default}``, which each node replaces by its
own variable when it connects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from rookery.actors.protection.scrubber import Scrubber
from rookery.bus.ports import ValueSeal
from rookery.schemas.errors import Failed
from rookery.schemas.protection.sealed_values import SealedValue

__all__ = ["SourceValues", "expand", "is_secret", "seal_value"]

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SECRET_NAME: Final = re.compile(r"auth|cookie|cred|key|pass|private|secret|token", re.I)
_SECRET_VALUE: Final = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_.=+-]{20,}")
_PATH: Final = re.compile(r"[/.~]|[a-z]+://")
SECRET_MIN: Final = 8
"""A shorter value would be removed from many texts by chance."""


def seal_value(
    seal: ValueSeal, surface: str, part: str, name: str, value: str
) -> str | SealedValue:
    """What facts hold of a value: sealed, unless it is nothing but variables. ``part``:
    ``environment`` or ``headers``."""
    left = _VARIABLE.sub("", value)
    if left.strip() in ("", "Bearer", "Basic") and "${" not in left:
        return value
    return seal.seal(msgspec.json.encode(value), f"surface/{surface}", f"{part}/{name}")


def expand(text: str, environ: Mapping[str, str], where: str) -> str:
    """The text with the variables of this node. ``Failed`` if one is not set."""

    def value(found: re.Match[str]) -> str:
        name, default = found.groups()
        if set_value := environ.get(name):
            return set_value
        if default is None:
            raise Failed(
                "SURFACE_UNAVAILABLE",
                f"{where} needs the variable {name}, which is not set on this node",
                hint=f"set {name} and start the node again, or write ${{{name}:-default}}",
            )
        return str(default)

    return _VARIABLE.sub(value, text)


class SourceValues:
    """The values of one source on this node."""

    def __init__(self, surface: str, seal: ValueSeal, environ: Mapping[str, str]) -> None:
        self._surface, self._seal, self._environ = surface, seal, environ
        self._secrets: dict[str, Scrubber] = {}

    @property
    def scrubbers(self) -> tuple[Scrubber, ...]:
        """Of the secrets among the values that were read so far."""
        return tuple(self._secrets.values())

    def read(self, part: str, values: Mapping[str, str | SealedValue]) -> dict[str, str]:
        """The values as the server gets them."""
        read = {}
        for name, value in values.items():
            text = self._open(part, name, value)
            read[name] = text = expand(text, self._environ, f"{part} {name} of {self._surface}")
            for secret in _secrets(name, text):
                self._secrets.setdefault(secret, Scrubber(secret))
        return read

    def _open(self, part: str, name: str, value: str | SealedValue) -> str:
        if isinstance(value, str):
            return value
        opened = self._seal.open(value, f"surface/{self._surface}", f"{part}/{name}")
        return msgspec.json.decode(opened, type=str)


def is_secret(name: str, text: str) -> bool:
    """Whether a value, by its own form and by its name, is one that must not be shown. A folder or
    a mode is none: results that name it would be of no use without it."""
    if len(text) < SECRET_MIN or "${" in text or text.startswith("-"):
        return False
    if _PATH.match(text):
        return False
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.fullmatch(text))


def _secrets(name: str, text: str) -> Iterator[str]:
    """What of a value is removed from what a server returns and says."""
    if is_secret(name, text):
        yield from (one for one in (text, text.rpartition(" ")[2]) if len(one) >= SECRET_MIN)
