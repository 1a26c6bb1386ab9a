"""The allow-list of the HTTP tools: servers, paths, methods and networks.

An entry is a URL, parsed as strictly as the URLs it is compared with. Scheme, host and port must be
equal, and the path must lie within. A name may resolve to any address, so every address must be
public or in a network of the entry. The transport resolves names.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from rookery.actors.tools.authoring.registry import ToolError
from rookery.actors.tools.builtin.urls import Target, parse_url
from rookery.schemas.errors import Refused

__all__ = [
    "METHODS",
    "WRITING_METHODS",
    "AllowRule",
    "Allowed",
    "Allowlist",
    "IPAddress",
    "is_public",
]

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

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

    @property
    def is_on_loopback(self) -> bool:
        """Whether its server is an address of this machine, and no name that may move."""
        try:
            return ipaddress.ip_address(self.prefix.host).is_loopback
        except ValueError:
            return False

    def permits(self, address: IPAddress) -> bool:
        """Whether the server may be at this address."""
        return is_public(address) or _is_in(address, self._networks)

    def __str__(self) -> str:
        return f"{self.prefix.url} ({', '.join(self.methods)})"


class Allowlist:
    def __init__(self, entries: Iterable[Allowed]) -> None:
        self._rules = tuple(map(AllowRule, entries))
        self.methods = frozenset(method for rule in self._rules for method in rule.methods)

    def require_encryption(self) -> None:
        """Refuse an entry whose server would get a credential in clear, unless it is here."""
        for rule in self._rules:
            if rule.prefix.scheme == "http" and not rule.is_on_loopback:
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
        if _is_in(address, _EMBEDDING):
            return is_public(ipaddress.IPv4Address(address.packed[-4:]))
        if address not in _UNICAST:
            return False
    return (
        address.is_global
        and not (address.is_multicast or address.is_reserved)
        and not _is_in(address, _SPECIAL)
    )


def _is_in(address: IPAddress, networks: Iterable[_Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
