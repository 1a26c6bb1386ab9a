"""A realm where only signed answers count, with a tool that wants them, approvers and an attacker.

What is sent goes through the door like anybody's command. What was done stands in a file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from rookery.actors.approvals.signing import Signer
from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.bus.client.client import Client, Handle, new_id
from rookery.bus.commands.inbox import JetStreamInbox
from rookery.bus.journal.reader import JournalReader
from rookery.bus.nats.connection import Connection
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.subjects import Subjects
from rookery.schemas.approvals.decision import DecideApproval
from rookery.schemas.approvals.lists import ListedApproval
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
"""Two approvers, one that was revoked, and somebody."""
Sent = Mapping[str, Any] | msgspec.Raw
"""An answer as it goes over the wire."""
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
    """A run that waits for somebody's word."""

    session: str
    run: Handle
    approval: ListedApproval

    def answer(self, decision: str = "approved", actor: str = "ann") -> DecideApproval:
        """What an approver may say, before it is signed."""
        return DecideApproval(
            approval_id=self.approval.approval_id,
            decision=decision,
            actor=actor,
            request_digest=self.approval.request_digest,
            answered_at_ms=self.approval.requested_at_ms + 1,
            reason=f"fine in {self.session}",
        )


class ApprovalWorld:
    """One realm; inside of ``with`` its client and its journal are at hand."""

    def __init__(self, server: EmbeddedServer, realm: str, folder: Path) -> None:
        self.server, self.realm, self.folder = server, realm, folder
        (folder / "strikes.py").write_text(_TOOLS, encoding="utf-8")
        self.client = Client(server.url, realm=realm)
        self._connection = Connection(server.url)
        subjects = Subjects(realm)
        self._reads = JournalReader(self._connection, subjects)
        self._inbox = JetStreamInbox(self._connection, subjects)

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
        await self.say(await self.naming("cy"))

    async def name(self, name: str, signer: Signer) -> None:
        await self.say(await self.naming(name, signer.public_key))

    async def naming(self, name: str, public_key: str = "", by: Signer = ANN) -> ChangeApprover:
        """What somebody may say who names an approver, or revokes one."""
        told = [one for one in await self.facts(APPROVERS_KEY) if "refused" not in one["type"]]
        said = ChangeApprover(name=name, public_key=public_key, change=len(told) + 1)
        return by.sign_change(self.realm, said)

    async def say(self, naming: ChangeApprover) -> None:
        await self.client.ask("approvers", APPROVERS_KEY, naming)

    async def parked(self, session: str, tool: str = "strike") -> Parked:
        """A run of the session that has come to its call."""
        run = await self.client.submit(session, f"{tool}({session!r})")
        while not (waiting := await self.client.approvals(session)):
            await asyncio.sleep(0.02)
        return Parked(session, run, waiting[0])

    def signed(self, answer: DecideApproval, signer: Signer = ANN) -> DecideApproval:
        return signer.sign(self.realm, answer)

    async def facts(self, session: str) -> list[dict[str, Any]]:
        """What approvals have on record of a session."""
        stored = await self._reads.read(EntityId("approval", session), 0)
        return [fact for one in stored for fact in msgspec.json.decode(one.body)]

    async def refused(self, session: str, sent: Sent) -> str:
        """Send this and see that it is refused, on record, and changes nothing; the code."""
        code: str = (await self.refusal(session, sent))["code"]
        return code

    async def refusal(self, session: str, sent: Sent) -> dict[str, Any]:
        """The same; what is on record."""
        before, struck = await self.facts(session), self.struck()
        with pytest.raises(Refused) as refusal:
            await self.client.ask("decide", session, sent)
        (left,) = (await self.facts(session))[len(before) :]
        assert (left["type"], left["code"]) == ("approval.answer_refused.v1", refusal.value.code)
        assert self.struck() == struck
        assert not await self.keeps(sent)
        return left

    async def keeps(self, sent: Sent) -> bool:
        """Whether it stands in the blob store."""
        try:
            await self.client.snapshot_bytes(digest_bytes(encode_json(sent)))
        except Failed as failure:
            if failure.code == "BLOB_NOT_FOUND":
                return False
            raise  # It says nothing about the blob.
        return True

    async def publish(self, session: str, sent: Sent) -> None:
        """To the durable inbox, where it waits for whoever comes."""
        await self._inbox.submit("decide", session, encode_json(sent), message_id=new_id())

    async def accepted(self, parked: Parked, answer: DecideApproval) -> None:
        """Send this and see that the run goes on, and does once what was approved."""
        assert parked.session not in self.struck()
        receipt = await self.client.ask("decide", parked.session, answer)
        assert (receipt["status"], receipt["verified"]) == ("approved", True)
        await self.goes_on(parked)

    async def goes_on(self, parked: Parked) -> None:
        ended = await parked.run.result(30)
        assert ended.result == f"struck {parked.session}", ended
        assert self.struck().count(parked.session) == 1

    def struck(self) -> list[str]:
        """For which sessions something was done that cannot be taken back, in order."""
        return self._lines("struck.txt")

    def knocked(self) -> list[str]:
        """For which calls it was knocked."""
        return self._lines("knocked.txt")

    def _lines(self, book: str) -> list[str]:
        path = self.folder / book
        return path.read_text().splitlines() if path.exists() else []


def on_the_wire(answer: DecideApproval) -> dict[str, Any]:
    sent: dict[str, Any] = msgspec.to_builtins(answer)
    return sent
