"""One reading of a URL, and a refusal of all that another reader might read otherwise.

A ``Target`` is made of checked parts, and only these parts are used afterwards: what is compared
with the allowlist is what is connected to and what is sent. Nothing is repaired or guessed; a name
that is not ASCII is written as ``xn--`` by whoever means it. Which targets are allowed is not known
here.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

from rookery.actors.tools.authoring.registry import ToolError

__all__ = ["Target", "parse_url", "resolve_redirect"]

_URL_BYTES_MAX: Final = 8192
_PORTS: Final = {"http": 80, "https": 443}

_VISIBLE: Final = re.compile(r"[!-~]+")
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?")
_AUTHORITY: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]+)(?::([1-9][0-9]{0,4}))?")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}")
_NUMBER: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
"""Names that end like this are addresses to some readers."""
_PATH: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_QUERY: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?\[\]-]|%[0-9A-Fa-f]{2})*")
_NAME_LENGTH_MAX: Final = 253
_ENCODINGS_MAX: Final = 3


class Target(msgspec.Struct, frozen=True):
    """Where a request goes."""

    scheme: str
    host: str
    """A name in lower case, or an address in its one spelling, without brackets."""
    port: int
    path: str
    query: str = ""
    """With its question mark, if there is one."""

    @property
    def authority(self) -> str:
        """As the ``Host`` header says it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}{self.query}"


def parse_url(text: str) -> Target:
    """The target ``text`` names. ``INVALID_ARGUMENT`` if it is no proper URL, ``PERMISSION_DENIED``
    if it is one nobody may use."""
    if len(text) > _URL_BYTES_MAX:
        raise _malformed(text, f"it has {len(text)} characters, above {_URL_BYTES_MAX}")
    if not _VISIBLE.fullmatch(text) or "\\" in text:
        raise _malformed(text, "it has characters that must be percent-encoded, or xn-- in a host")
    match = _URL.fullmatch(text)
    if match is None:
        raise _malformed(text, "it is not written scheme://host/path")
    scheme, authority, path, query, fragment = match.groups(default="")
    if scheme.lower() not in _PORTS:
        raise ToolError("PERMISSION_DENIED", f"{scheme[:20]} is neither http nor https")
    if fragment:
        raise _malformed(text, "a fragment is never sent")
    if not _PATH.fullmatch(path) or not _QUERY.fullmatch(query):
        raise _malformed(text, "its path or query has characters that must be percent-encoded")
    host, port = _host_and_port(text, authority)
    _check_segments(text, path)
    return Target(scheme.lower(), host, port or _PORTS[scheme.lower()], path or "/", query)


def resolve_redirect(target: Target, location: str) -> Target:
    """Where a server at ``target`` points with ``location``; read as strictly as any URL."""
    return parse_url(urldefrag(urljoin(target.url, location)).url)


def _host_and_port(text: str, authority: str) -> tuple[str, int]:
    if "@" in authority:
        raise ToolError("PERMISSION_DENIED", "a URL may not carry a user or a password")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise _malformed(text, "its host or port is not written plainly")
    host, port = match[1].lower(), int(match[2] or 0)
    if port > 65535:
        raise _malformed(text, f"there is no port {port}")
    try:
        if host.startswith("["):
            return _address_v6(host[1:-1]), port
        if _NUMBER.fullmatch(host):
            return str(ipaddress.IPv4Address(host)), port
    except ValueError:
        raise _malformed(text, "its host is no address in its usual spelling") from None
    if len(host) > _NAME_LENGTH_MAX or not _NAME.fullmatch(host):
        raise _malformed(text, "its host is no plain name")
    return host, port


def _address_v6(text: str) -> str:
    if "%" in text:
        raise ValueError("an address with a zone means something else on every machine")
    return str(ipaddress.IPv6Address(text))


def _check_segments(text: str, path: str) -> None:
    """Refuse what a server could take for a step upwards, however often it decodes: it would leave
    the part of the server that is allowed."""
    decoded = path
    for _ in range(_ENCODINGS_MAX):
        for segment in re.split(r"[/\\]", decoded):
            if segment.partition(";")[0] in (".", ".."):
                raise ToolError("PERMISSION_DENIED", f"{text[:80]!r} has dots for a folder")
        if re.search(r"[\x00-\x1f\x7f]", decoded):
            raise _malformed(text, "its path has a control character")
        decoded, before = unquote(decoded, errors="replace"), decoded
        if decoded == before:
            return
    raise _malformed(text, "its path is encoded several times over")


def _malformed(text: str, why: str) -> ToolError:
    return ToolError("INVALID_ARGUMENT", f"{text[:80]!r} cannot be fetched: {why}")
