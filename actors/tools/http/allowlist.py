"""The allow-list of the HTTP tools, and the strict parser of their URLs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

from rookery.actors.tools.authoring.registry import ToolError
from rookery.schemas.errors import Refused

__all__ = [
    "METHODS",
    "WRITING_METHODS",
    "AllowRule",
    "Allowed",
    "Allowlist",
    "IPAddress",
    "Network",
    "Target",
    "is_in",
    "is_public",
    "parse_url",
    "resolve_redirect",
]

# --- urls -----------------------------------------------------------------------------------------

# URLs: a strict parser that refuses every URL another parser might read differently.
#
# A ``Target`` consists of checked parts, and only these are used: the allow-list compares, the
# transport connects to and sends the same parts. The parser repairs nothing; a host name that is
# not ASCII must be written as ``xn--``.


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
    def is_confidential(self) -> bool:
        """Whether only it reads what it gets: by TLS, or at an address of this machine, and no name
        that may move."""
        try:
            return self.scheme == "https" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

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


# --- allowlist ------------------------------------------------------------------------------------

# The allow-list of the HTTP tools: servers, paths, methods and networks.
#
# An entry is a URL, parsed as strictly as the URLs it is compared with. Scheme, host and port must
# be equal, and the path must lie within. A name may resolve to any address, so every address must
# be public or in a network of the entry. The transport resolves names.


IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

WRITING_METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")
METHODS: Final = ("GET", *WRITING_METHODS)

_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_EMBEDDING: Final = tuple(map(ipaddress.IPv6Network, ("::ffff:0:0/96", "64:ff9b::/96")))
"""IPv6 networks whose addresses embed an IPv4 address in their last four bytes."""
_SPECIAL: Final = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20"),
    )
)
"""Relays, tunnels and examples that older Pythons treat as public."""


class Allowed(msgspec.Struct, frozen=True):
    """A part of a server, as in ``Allowed("https://api.example.com/v1")``."""

    url: str
    methods: tuple[str, ...] = ("GET",)
    networks: tuple[str, ...] = ()
    """Permitted beside public addresses, for example ``("10.1.0.0/16",)``."""


class AllowRule:
    """A parsed entry."""

    def __init__(self, entry: Allowed) -> None:
        self.methods = entry.methods
        try:
            self.prefix = parse_url(entry.url)
            self._networks = tuple(ipaddress.ip_network(text) for text in entry.networks)
        except (ToolError, ValueError) as error:
            raise Refused("CONFIG_INVALID", f"{entry.url[:80]!r} is not allowed: {error}") from None
        if self.prefix.query:
            raise Refused(
                "CONFIG_INVALID", f"{entry.url[:80]!r} has a query, which would not count"
            )
        if unknown := set(entry.methods) - set(METHODS):
            known = ", ".join(METHODS)
            text = f"{entry.url[:80]!r} allows {', '.join(sorted(unknown))}; there are {known}"
            raise Refused("CONFIG_INVALID", text)
        address = _address_in(self.prefix.host)
        if address is not None and not self.permits(address):
            raise Refused(
                "CONFIG_INVALID",
                f"{entry.url[:80]!r} is at {address}, which is no public address",
                hint=f"name its network, too: '{entry.url[:80]} {address}/{address.max_prefixlen}'",
            )

    def covers(self, method: str, target: Target) -> bool:
        prefix = self.prefix
        return (
            method in self.methods
            and (target.scheme, target.host, target.port)
            == (prefix.scheme, prefix.host, prefix.port)
            and f"{target.path}/".startswith(f"{prefix.path.rstrip('/')}/")
        )

    def permits(self, address: IPAddress) -> bool:
        """Whether the server may be at this address."""
        return is_public(address) or is_in(address, self._networks)

    def __str__(self) -> str:
        return f"{self.prefix.url} ({', '.join(self.methods)})"


class Allowlist:
    def __init__(self, entries: Iterable[Allowed]) -> None:
        self._rules = tuple(map(AllowRule, entries))
        self.methods = frozenset(method for rule in self._rules for method in rule.methods)

    def require_encryption(self) -> None:
        """Refuse an entry whose server would get a credential in clear, unless it is here."""
        for rule in self._rules:
            if not rule.prefix.is_confidential:
                raise Refused(
                    "CONFIG_INVALID",
                    f"{rule.prefix.url[:80]!r} is not encrypted, and would get a credential",
                    hint="use https, or a server on loopback",
                )

    def rule_for(self, method: str, target: Target) -> AllowRule:
        """The first rule that covers this request; raises ``PERMISSION_DENIED``."""
        for rule in self._rules:
            if rule.covers(method, target):
                return rule
        url = f"{target.scheme}://{target.authority}{target.path}"
        raise ToolError("PERMISSION_DENIED", f"{method} {url[:80]} is not on the allowlist")

    def __str__(self) -> str:
        return ", ".join(map(str, self._rules))


def _address_in(host: str) -> IPAddress | None:
    """The address that a URL itself says; other names are resolved at each call."""
    if host == "localhost" or host.endswith(".localhost"):
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_public(address: IPAddress) -> bool:
    """Whether an address belongs to the public internet."""
    if isinstance(address, ipaddress.IPv6Address):
        if is_in(address, _EMBEDDING):
            return is_public(ipaddress.IPv4Address(address.packed[-4:]))
        if address not in _UNICAST:
            return False
    return (
        address.is_global
        and not (address.is_multicast or address.is_reserved)
        and not is_in(address, _SPECIAL)
    )


def is_in(address: IPAddress, networks: Iterable[Network]) -> bool:
    """Whether one of the networks has the address."""
    return any(address.version == network.version and address in network for network in networks)
