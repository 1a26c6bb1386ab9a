"""A realm whose tool needs a credential, nodes that renew it, and the person who logs in."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from rookery.actors.leases.provider import LeaseCredential
from rookery.bus.clock import entropy
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.roles import Role
from rookery.bus.sealed_secrets import SealedSecrets
from rookery.bus.server.server import EmbeddedServer
from rookery.ops.keys import ConfiguredKeys
from tests.execution.programs import Programs
from tests.leases.token_server import TokenServer
from tests.nodes import NodeProcess, node_on, sealing_key_of
from tests.stock_client import Fields, Stock

__all__ = ["CALLS", "SESSIONS", "LeaseRealm", "facts_of_lease"]

_realms = count(1)
SESSIONS = 4
CALLS = 25
"""Of a run in each of the sessions."""
TOOLS = '''
import hashlib
from rookery.actors import tool
from rookery.actors.credentials import ToolCredential

@tool(side_effect="write", idempotent=True, binding="bank", concurrency=200)
async def pay(amount: int, credential: ToolCredential) -> int:
    """It writes down with what it was paid."""
    digits = hashlib.sha256(credential.value.encode()).hexdigest()[:8]
    with open("paid.txt", "a") as book:
        book.write(f"{amount} {digits}\\n")
    return amount

@tool(binding="phone")
def call_up(credential: ToolCredential) -> int:
    """It needs a login by device code."""
    return len(credential.value)

TOOLS = [pay, call_up]
'''
CONFIG = """
[bindings.bank]
provider = "authorization_code"
token_url = "{url}/token"
authorize_url = "{url}/authorize"
client_id = "rookery"
timeout_s = 5.0

[bindings.phone]
provider = "device_code"
token_url = "{url}/token"
device_url = "{url}/device"
client_id = "rookery"
"""


class LeaseRealm:
    """One realm on the test's server."""

    def __init__(self, server: EmbeddedServer, folder: Path, tokens: TokenServer) -> None:
        self.server, self.folder, self.tokens = server, folder, tokens
        self.realm = f"leases{next(_realms)}"
        self.lease = f"{self.realm}:bank"
        self.nodes: list[NodeProcess] = []
        (folder / "paying.py").write_text(TOOLS, encoding="utf-8")
        (folder / "rookery.toml").write_text(CONFIG.format(url=tokens.url), encoding="utf-8")

    def node(self, **variables: str) -> NodeProcess:
        """A node that serves; the test closes it."""
        tools = ("--driver", "sandbox", "--tools", "paying:TOOLS", "--metrics-port", "0")
        here = str(Path(__file__).parents[2])
        node = node_on(self.server, self.realm, self.folder, *tools, PYTHONPATH=here, **variables)
        self.nodes.append(node)
        return node.start()

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    async def seal(self, sealed_as: int, refresh_token: str, left_s: float) -> None:
        """Seal a credential, as the end of a login does."""
        bus = JetStreamBus(
            self.server.url_for(Role.NODE, realm=self.realm),
            realm=self.realm,
            sync="always",
        )
        await bus.start()
        try:
            path = Path(sealing_key_of(self.server, self.realm)["ROOKERY_NODE_SEALING_KEY"])
            keys = ConfiguredKeys("", path, {})
            await asyncio.to_thread(keys.read)
            credential = LeaseCredential(
                value=f"canary-sealed-{sealed_as}",
                refresh_token=refresh_token,
                expires_at=int(time.time() + left_s),
            )
            sealed = SealedSecrets(bus.secrets, self.realm, keys, entropy)
            name, value = f"lease/{self.lease}", msgspec.json.encode(credential)
            assert await sealed.put(name, sealed_as, value)
        finally:
            await bus.stop()

    async def begin_calls(self, client: Stock) -> list[Programs]:
        """One run in each session, whose calls wait together."""
        code = f"import asyncio\nsum(await asyncio.gather(*(pay(n) for n in range({CALLS}))))"
        sessions = [Programs(client, f"s{number}") for number in range(SESSIONS)]
        for programs in sessions:
            await programs.follow()
            body = {"code": code, "timeout_ms": 60_000}
            await client.submit("run", programs.session, body)
        return sessions

    @property
    def paid(self) -> Counter[str]:
        """How often each amount was paid."""
        book = self.folder / "paid.txt"
        lines = book.read_text().splitlines() if book.exists() else []
        return Counter(line.split()[0] for line in lines)

    async def request(self, client: Stock) -> None:
        """Request a newer credential, as an operator does who has read that the refresh token may
        be used up."""
        body = {"input": "request_credential", "params": {"again": True}}
        answer = await client.ask("leases", self.lease, body)
        assert not answer.code, answer


async def facts_of_lease(client: Stock, lease: str) -> list[Fields]:
    """All facts of the lease, as they are added."""
    found: list[Any] = []

    async def seen(message: Any) -> None:
        found.extend(json.loads(message.data))

    await client.watch(f"rookery.{client.realm}.ev.lease.{lease}", seen)
    return found
