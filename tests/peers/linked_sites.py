"""Embedded servers of several sites, linked as ``rookery peers link`` says; one realm on each.

All realms are called ``default``: what a site calls another one is the alias of its realm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec.structs import replace

from rookery.bus.mesh_links import MeshLink, make_links
from rookery.bus.server import EmbeddedServer
from tests.peers.peer_realms import PeerRealm

__all__ = ["linked_servers", "links_of", "pair_sites"]


def links_of(first: str, leaves: Sequence[str], port: int) -> dict[str, MeshLink]:
    """The link of each site to a hub that listens on a port of this machine."""
    address = f"127.0.0.1:{port}"
    passwords = {leaf: f"password-of-{leaf}" for leaf in leaves}
    made = make_links(first, leaves, f"nats-leaf://{address}", address, passwords)
    return {link.site: link for link in made}


@contextmanager
def linked_servers(
    folder: Path, links: Mapping[str, MeshLink], *, through: int = 0
) -> Iterator[dict[str, EmbeddedServer]]:
    """A running server for each link, the hub's first. ``through``: the port of what is between the
    leaves and the hub."""
    with ExitStack() as opened:
        servers: dict[str, EmbeddedServer] = {}
        for site, link in links.items():
            is_behind = through and not link.is_listener
            own = replace(link, url=f"nats-leaf://127.0.0.1:{through}") if is_behind else link
            server = EmbeddedServer(folder / site, sync="default", admin=True, link=own)
            servers[site] = opened.enter_context(server)
        yield servers


def pair_sites(realms: Mapping[str, PeerRealm]) -> None:
    """Let each site accept the card of each other one under its name."""
    cards = {site: realm.card() for site, realm in realms.items()}
    for site, realm in realms.items():
        for other, card in cards.items():
            if other != site:
                ended = realm.rookery("peers", "accept", card, "--as", other, "--approval", "none")
                assert ended.code == 0, ended
