"""Links between the servers of realms: a hub with leaf nodes, and one subject each way.

A site has two kinds of accounts. The realm's has its users, streams and sessions. The other kind
carries envelopes alone: a leaf has one, and the hub one for each site, so that no site shares an
account with another one, and hears or answers only what the hub's imports give it. Pure, but for
``read_link``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Meta

from rookery.schemas.errors import Refused

__all__ = ["REALM_ACCOUNT", "LinkFiles", "MeshLink", "link_config", "make_links", "read_link"]

SiteName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,32}\Z")]
REALM_ACCOUNT: Final = "ROOKERY"
"""The account of the realm on a server with links. Without links it is the server's global one,
which can neither export nor import."""
_LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "::1")
_LEAF_SCHEMES: Final = {"nats-leaf": "nats-leaf", "nats": "nats-leaf", "tls": "tls"}
_ACKNOWLEDGEMENTS: Final = "_R_.>"
"""Where servers send each other the replies to imported services."""
_PING_S, _PINGS_MAX = 10, 2
"""A link that passes nothing is noticed after so long; the server's default is minutes."""


class MeshLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a site needs to know of its links: a file of ``rookery peers link``, with secrets."""

    site: SiteName
    """What the other sites call this one."""
    sites: tuple[SiteName, ...]
    """The others, as the aliases of their realms here."""
    url: str
    """Where the hub is reached."""
    listen: Annotated[str, Meta(pattern=r"\A(.+:\d{1,5})?\Z")] = ""
    """Only the hub's: where it listens."""
    passwords: dict[SiteName, str]
    """The hub has all, a leaf its own."""

    @property
    def is_listener(self) -> bool:
        return bool(self.listen)


class LinkFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of a site's link, as the configuration names them."""

    link_file: str = ""
    """What ``rookery peers link`` made for this site."""
    ca_file: str = ""
    """Certificates that vouch for the other side. With a certificate, it must show one, too."""
    certificate_file: str = ""
    """This site's own, for TLS; the hub needs one, unless it listens on this machine only."""
    key_file: str = ""
    """Its private key; empty: it is in the same file."""


def make_links(
    first: str, leaves: Sequence[str], url: str, listen: str, passwords: Mapping[str, str]
) -> Iterable[MeshLink]:
    """The links of each site; ``Refused`` INVALID_ARGUMENT. ``first`` is the hub;
    ``passwords``: of each leaf."""
    sites = (first, *leaves)
    if len(set(sites)) != len(sites):
        raise Refused("INVALID_ARGUMENT", "every site has a name of its own")
    for site in sites:
        others = tuple(one for one in sites if one != site)
        own = dict(passwords) if site == first else {site: passwords[site]}
        made = MeshLink(
            site=site, sites=others, url=url, listen=listen if site == first else "", passwords=own
        )
        yield _checked(msgspec.json.encode(made), "INVALID_ARGUMENT", site)


def read_link(path: Path) -> MeshLink:
    """The link of a file; ``Refused`` CONFIG_INVALID."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise Refused("CONFIG_INVALID", f"{path}: {error.strerror}") from None
    return _checked(text, "CONFIG_INVALID", str(path))


def _checked(text: bytes, code: str, name: str) -> MeshLink:
    try:
        link = msgspec.json.decode(text, type=MeshLink)
    except msgspec.DecodeError as error:
        raise Refused(code, f"{name}: {error}", hint="rookery peers link --help") from None
    address = urlsplit(link.url)
    if address.scheme not in _LEAF_SCHEMES or address.hostname is None or address.port is None:
        raise Refused(
            code, f"{link.url[:200]} is no URL of a hub", hint="nats-leaf://HOST:7422 or tls://..."
        )
    return link


def link_config(link: MeshLink, realm: str, users: Sequence[str], files: LinkFiles) -> list[str]:
    """The blocks of a server with links; ``Refused`` CONFIG_INVALID. ``users``: the lines of the
    realm's users."""
    if realm in link.sites:
        text = f"this realm is called {realm}, and so is another site"
        raise Refused("CONFIG_INVALID", text, hint="give the site another name: rookery peers link")
    accounts = _listener_accounts(link, realm) if link.is_listener else _leaf_accounts(link, realm)
    leafnodes = _listener_leafnodes(link, files) if link.is_listener else _leaf_remote(link, files)
    realm_account = accounts.pop(REALM_ACCOUNT)
    return [
        f"ping_interval: {json.dumps(f'{_PING_S}s')}",
        f"ping_max: {_PINGS_MAX}",
        f"leafnodes {json.dumps(leafnodes, indent=1)}",
        "accounts {",
        f"{REALM_ACCOUNT} {{",
        *users,
        *(f"{name}: {json.dumps(value, indent=1)}" for name, value in realm_account.items()),
        "}",
        *(f"{name} {json.dumps(value, indent=1)}" for name, value in accounts.items()),
        "}",
    ]


def _inbox(realm: str) -> str:
    """The subject of envelopes to the sessions of a realm."""
    return f"rookery.{realm}.cmd.envelope.*"


def _site(site: str) -> str:
    """The subject of envelopes to a site, on the links."""
    return f"mesh.{site}.*"


def _account(site: str) -> str:
    return f"LINK_{site}"


def _service(account: str, subject: str, to: str = "") -> dict[str, Any]:
    renamed = {"to": to} if to else {}
    return {"service": {"account": account, "subject": subject}, **renamed}


def _listener_accounts(link: MeshLink, realm: str) -> dict[str, dict[str, Any]]:
    """Of the realm, and one for each leaf: it can reach the hub and the other leaves, and gets what
    is for itself."""
    accounts: dict[str, dict[str, Any]] = {
        REALM_ACCOUNT: {
            "jetstream": "enabled",
            "exports": [{"service": _inbox(realm), "accounts": [*map(_account, link.sites)]}],
            "imports": [_service(_account(one), _site(one), _inbox(one)) for one in link.sites],
        }
    }
    for site in link.sites:
        others = [one for one in link.sites if one != site]
        allowed = {
            "publish": {"allow": [*map(_site, (link.site, *others)), _ACKNOWLEDGEMENTS]},
            "subscribe": {"allow": [_site(site), _ACKNOWLEDGEMENTS]},
        }
        user = {"user": site, "password": link.passwords[site], "permissions": allowed}
        accounts[_account(site)] = {
            "users": [user],
            "exports": [
                {"service": _site(site), "accounts": [REALM_ACCOUNT, *map(_account, others)]}
            ],
            "imports": [
                _service(REALM_ACCOUNT, _inbox(realm), _site(link.site)),
                *(_service(_account(one), _site(one)) for one in others),
            ],
        }
    return accounts


def _leaf_accounts(link: MeshLink, realm: str) -> dict[str, dict[str, Any]]:
    """Of the realm, and of the link to the hub."""
    account = _account(link.site)
    return {
        REALM_ACCOUNT: {
            "jetstream": "enabled",
            "exports": [{"service": _inbox(realm), "accounts": [account]}],
            "imports": [_service(account, _site(one), _inbox(one)) for one in link.sites],
        },
        account: {
            "imports": [_service(REALM_ACCOUNT, _inbox(realm), _site(link.site))],
            "exports": [{"service": _site(one), "accounts": [REALM_ACCOUNT]} for one in link.sites],
        },
    }


def _listener_leafnodes(link: MeshLink, files: LinkFiles) -> dict[str, Any]:
    """Without ``no_advertise`` a leaf would learn the hub's own address, and dial around whatever
    is between them."""
    host = link.listen.rpartition(":")[0].strip("[]")
    if not files.certificate_file and host not in _LOCAL_HOSTS:
        raise Refused(
            "CONFIG_INVALID",
            f"links from other machines to {link.listen} need TLS",
            hint="set mesh.certificate_file and mesh.key_file, or listen on 127.0.0.1 only",
        )
    return {"listen": link.listen, "no_advertise": True, **_tls(files)}


def _leaf_remote(link: MeshLink, files: LinkFiles) -> dict[str, Any]:
    url = urlsplit(link.url)
    host = f"[{url.hostname}]" if ":" in str(url.hostname) else url.hostname
    user = f"{quote(link.site)}:{quote(link.passwords[link.site])}"
    remote = {
        "url": f"{_LEAF_SCHEMES[url.scheme]}://{user}@{host}:{url.port}",
        "account": _account(link.site),
        **_tls(files),
    }
    return {"reconnect": "1s", "remotes": [remote]}


def _tls(files: LinkFiles) -> dict[str, Any]:
    named = {
        "ca_file": files.ca_file,
        "cert_file": files.certificate_file,
        "key_file": files.key_file or files.certificate_file,
    }
    tls: dict[str, Any] = {name: path for name, path in named.items() if path}
    if not tls:
        return {}
    if files.ca_file and files.certificate_file:
        tls["verify"] = True
    return {"tls": tls}
