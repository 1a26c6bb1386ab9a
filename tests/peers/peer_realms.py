"""Realms with nodes on one server, paired by their cards, and clients that speak for sessions."""

from __future__ import annotations

from pathlib import Path

from rookery.bus.client import Client
from rookery.bus.clock import wait_until
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.server_access import ServerAccess
from tests.nodes import NodeProcess, node_on, sealing_key_of
from tests.ops.fixtures import Ended, Realm

__all__ = ["PeerRealm", "pair_realms"]

PATIENCE_S = 90.0


class PeerRealm(Realm):
    """A realm whose node executes runs."""

    def __init__(self, server: EmbeddedServer, name: str, home: Path) -> None:
        home.mkdir(exist_ok=True)
        super().__init__(server, name, home)
        self.environment |= sealing_key_of(server, name) | {"COLUMNS": "200"}

    def node(self, *arguments: str, **variables: str) -> NodeProcess:
        """To be started."""
        executes = {"ROOKERY_NODE_DRIVER": "sandbox"}
        return node_on(self.server, self.name, self.home, *arguments, **(executes | variables))

    def client(self) -> Client:
        """To be opened."""
        url = self.server.url_for(Role.OPERATOR, realm=self.name)
        return Client(url, ServerAccess(), realm=self.name)

    def open_session(self, session: str) -> None:
        assert self.rookery("run", "--session", session, "-e", "1").code == 0

    def card(self) -> str:
        """As soon as the realm is enrolled."""

        def printed() -> Ended | None:
            ended = self.rookery("peers", "card", "--json")
            return ended if ended.code == 0 else None

        return str(wait_until(printed, PATIENCE_S).json["card"])


def pair_realms(*realms: PeerRealm) -> None:
    """Let each accept the card of each other under its name on the server."""
    cards = {realm.name: realm.card() for realm in realms}
    for realm in realms:
        for name, card in cards.items():
            if name != realm.name:
                ended = realm.rookery("peers", "accept", card, "--as", name)
                assert ended.code == 0, ended
