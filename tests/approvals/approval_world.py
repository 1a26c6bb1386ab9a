"""A realm that accepts only signed answers, with a tool that needs approval, and approvers.

The client sends requests through the request endpoint. The tools write their calls to files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.actors.keys.approver_signatures import Signer
from rookery.bus.client.client import Client, Handle
from rookery.bus.clock import new_id
from rookery.bus.commands.command_messages import CommandDecoder
from rookery.bus.commands.inbox import JetStreamInbox
from rookery.bus.journal.reader import JournalReader
from rookery.bus.nats.connection import Connection
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.subjects import Subjects
from rookery.schemas.approvals.lists import ListedApproval
from rookery.schemas.approvals.records import DecideApproval
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import ChangeApprover
from rookery.schemas.digest import digest_bytes
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed, Refused
from tests.nodes import NodeProcess, node_on

__all__ = [
    "ANN",
    "BOB",
    "CY",
    "EVE",
    "PAYLOAD_BYTES_MAX",
    "ApprovalWorld",
    "Parked",
    "Sent",
    "on_the_wire",
]

ANN, BOB, CY, EVE = (Signer(letter * 32) for letter in (b"a", b"b", b"c", b"e"))
"""Two approvers, one revoked approver, and a key that no approver has."""
Sent = Mapping[str, Any] | msgspec.Raw
"""An answer as the client sends it."""
PAYLOAD_BYTES_MAX = 128 << 10

_TOOLS = '''
from rookery.actors import tool
from rookery.actors.tools.authoring.registry import ToolCallContext

@tool(side_effect="write", idempotent=False, approval_policy="manual")
def strike(name: str) -> str:
    """Nothing to be taken back."""
    with open("struck.txt", "a") as book:
        book.write(f"{name}\\n")
    return f"struck {name}"

@tool(side_effect="write", idempotent=True, approval_policy="manual")
def knock(name: str, ctx: ToolCallContext) -> str:
    """Knocking twice for the same call is knocking once."""
    with open("knocked.txt", "a") as book:
        book.write(f"{ctx.idempotency_key}\\n")
    return f"knocked {name}"

TOOLS = [strike, knock]
'''


class Parked(NamedTuple):
    """A run that waits for an approval."""

    session: str
    run: Handle
    approval: ListedApproval

    def answer(self, decision: str = "approved", actor: str = "ann") -> DecideApproval:
        """A valid answer, not yet signed."""
        return DecideApproval(
            approval_id=self.approval.approval_id,
            decision=decision,
            actor=actor,
            request_digest=self.approval.request_digest,
            tool_digest=self.approval.tool_digest,
            answered_at_ms=self.approval.requested_at_ms + 1,
            reason=f"fine in {self.session}",
        )


class ApprovalWorld:
    """One realm; inside ``with`` its client and its journal are open."""

    def __init__(self, server: EmbeddedServer, realm: str, folder: Path) -> None:
        self.server, self.realm, self.folder = server, realm, folder
        (folder / "strikes.py").write_text(_TOOLS, encoding="utf-8")
        self.client = Client(server.url_for(Role.OPERATOR, realm=realm), realm=realm)
        self._connection = Connection(server.url_for(Role.NODE, realm=realm))
        subjects = Subjects(realm)
        self._reads = JournalReader(self._connection, subjects)
        self._inbox = JetStreamInbox(self._connection, subjects, CommandDecoder(subjects, ""))

    def node(self, **variables: str) -> NodeProcess:
        keys = {
            "ROOKERY_APPROVALS_REQUIRE_KEYS": "true",
            "ROOKERY_LIMITS_PAYLOAD_BYTES_MAX": str(PAYLOAD_BYTES_MAX),
            "ROOKERY_NODE_DRIVER": "sandbox",
        }
        tools = ("--tools", "strikes:TOOLS")
        return node_on(self.server, self.realm, self.folder, *tools, **(keys | variables))

    async def __aenter__(self) -> ApprovalWorld:
        await self.client.open()
        await self._connection.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()
        await self.client.close()

    async def name_approvers(self) -> None:
        for name, signer in (("ann", ANN), ("bob", BOB), ("cy", CY)):
            await self.name(name, signer)
        await self.change(await self.naming("cy"))

    async def name(self, name: str, signer: Signer) -> None:
        await self.change(await self.naming(name, signer.public_key))

    async def naming(self, name: str, public_key: str = "", by: Signer = ANN) -> ChangeApprover:
        """A signed change that adds an approver, or revokes one."""
        told = [one for one in await self.facts(APPROVERS_KEY) if "refused" not in one["type"]]
        said = ChangeApprover(name=name, public_key=public_key, change=len(told) + 1)
        return by.sign_change(self.realm, said)

    async def change(self, naming: ChangeApprover) -> None:
        await self.client.ask("approvers", APPROVERS_KEY, naming)

    async def parked(self, session: str, tool: str = "strike") -> Parked:
        """Start a run and wait until its call waits for approval."""
        run = await self.client.submit(session, f"{tool}({session!r})")
        while not (waiting := await self.client.approvals(session)):
            await asyncio.sleep(0.02)
        return Parked(session, run, waiting[0])

    def signed(self, answer: DecideApproval, signer: Signer = ANN) -> DecideApproval:
        return signer.sign(self.realm, answer)

    async def facts(self, session: str) -> list[dict[str, Any]]:
        """The facts of family approval of a session."""
        stored = await self._reads.read(EntityId("approval", session), 0)
        return [fact for one in stored for fact in msgspec.json.decode(one.body)]

    async def refused(self, session: str, sent: Sent) -> str:
        """Send an answer; check that it is refused and recorded and changes nothing. The code."""
        code: str = (await self.refusal(session, sent))["code"]
        return code

    async def refusal(self, session: str, sent: Sent) -> dict[str, Any]:
        """As ``refused``; the recorded fact."""
        before, struck = await self.facts(session), self.strike_calls()
        with pytest.raises(Refused) as refusal:
            await self.client.ask("decide", session, sent)
        (left,) = (await self.facts(session))[len(before) :]
        assert (left["type"], left["code"]) == ("approval.answer_refused.v1", refusal.value.code)
        assert self.strike_calls() == struck
        assert not await self.is_stored(sent)
        return left

    async def is_stored(self, sent: Sent) -> bool:
        """Whether the blob store has the answer."""
        try:
            await self.client.snapshot_bytes(digest_bytes(encode_json(sent)))
        except Failed as failure:
            if failure.code == "BLOB_NOT_FOUND":
                return False
            raise  # Another error: the blob may exist.
        return True

    async def publish(self, session: str, sent: Sent) -> None:
        """Publish an answer to the durable inbox, where it waits for a node."""
        await self._inbox.submit("decide", session, encode_json(sent), message_id=new_id())

    async def accepted(self, parked: Parked, answer: DecideApproval) -> None:
        """Send an answer; check that the run continues and makes the approved call once."""
        assert parked.session not in self.strike_calls()
        receipt = await self.client.ask("decide", parked.session, answer)
        assert (receipt["status"], receipt["verified"]) == ("approved", True)
        await self.check_end(parked)

    async def check_end(self, parked: Parked) -> None:
        ended = await parked.run.result(30)
        assert ended.result == f"struck {parked.session}", ended
        assert self.strike_calls().count(parked.session) == 1

    def strike_calls(self) -> list[str]:
        """The sessions whose call with a side effect was made, in order."""
        return self._lines("struck.txt")

    def knock_calls(self) -> list[str]:
        """The calls of ``knock`` that were made."""
        return self._lines("knocked.txt")

    def _lines(self, book: str) -> list[str]:
        path = self.folder / book
        return path.read_text().splitlines() if path.exists() else []


def on_the_wire(answer: DecideApproval) -> dict[str, Any]:
    sent: dict[str, Any] = msgspec.to_builtins(answer)
    return sent
