"""URLs: a strict parser that refuses every URL another parser might read differently.

A ``Target`` consists of checked parts, and only these are used: the allow-list compares, the
transport connects to and sends the same parts. The parser repairs nothing; a host name that is not
ASCII must be written as ``xn--``.
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
"""Some parsers read names that end like this as addresses."""
_PATH: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_QUERY: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?\[\]-]|%[0-9A-Fa-f]{2})*")
_NAME_LENGTH_MAX: Final = 253
_ENCODINGS_MAX: Final = 3


class Target(msgspec.Struct, frozen=True):
    """The target of a request."""

    scheme: str
    host: str
    """A name in lower case, or an address in its canonical form, without brackets."""
    port: int
    path: str
    query: str = ""
    """With its question mark; empty if there is none."""

    @property
    def authority(self) -> str:
        """The value of the ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}{self.query}"


def parse_url(text: str) -> Target:
    """The target of ``text``. ``INVALID_ARGUMENT`` for a malformed URL, ``PERMISSION_DENIED`` for
    one with credentials."""
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
    """The target of the redirect ``location`` from ``target``, parsed as strictly."""
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
    """Refuse a segment that a server could read as a step upwards, however often it decodes: the
    request would leave the allowed part of the server."""
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
