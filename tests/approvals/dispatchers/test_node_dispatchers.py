"""A whole node asks approvers outside the realm and receives their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from rookery.actors.keys.webhooks import WebhookKey
from rookery.bus.clock import SystemClock
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats.connection import Connection, Message, Outgoing
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.ops.approval_dispatchers import ApprovalDispatchers
from rookery.ops.config import ApprovalsConfig
from rookery.schemas.approvals.dispatch import ApprovalDispatch, DispatchOutcome, DispatchReply
from rookery.schemas.approvals.records import DecideApproval
from rookery.schemas.errors import Refused
from rookery.schemas.ids import decode_typed_text
from tests.approvals.approval_world import ANN, ApprovalWorld, on_the_wire
from tests.nodes import NodeProcess
from tests.stock_client import until
from tests.tools.builtin.web_server import Web, answer

SECRET = "whsec_c2hhcmVkIGJ5IHR3byBzaWRlcywgYnkgbm8gb3RoZXI="
SUBJECT = "approvers.night"


@pytest.fixture
def web() -> Iterator[Web]:
    served = Web()
    yield served
    served.stop()


def understood(body: bytes) -> ApprovalDispatch:
    return msgspec.json.decode(body, type=ApprovalDispatch, dec_hook=decode_typed_text)


def word(asked: ApprovalDispatch, decision: str = "approved") -> DecideApproval:
    """Ann's answer, signed with her key."""
    return ANN.sign(
        asked.realm,
        DecideApproval(
            approval_id=asked.approval_id,
            decision=decision,
            actor="ann",
            request_digest=asked.request_digest,
            answered_at_ms=SystemClock().now_ms(),
        ),
    )


class ApprovalService:
    """An external service."""

    def __init__(
        self,
        connection: Connection,
        subject: str,
        says: Callable[[ApprovalDispatch], DispatchReply],
    ) -> None:
        self._connection, self._subject, self._says = connection, subject, says
        self.asked: list[ApprovalDispatch] = []

    async def open(self) -> None:
        await self._connection.subscribe(self._subject, self._take)
        await self._connection.client.flush()

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            self.asked.append(understood(message.body))
            said = msgspec.json.encode(self._says(self.asked[-1]))
            self._connection.send([Outgoing(message.reply, said)])


def name_approvers(world: ApprovalWorld) -> None:
    """A node knows all keys that were added before it started."""

    async def name() -> None:
        async with ApprovalWorld(world.server, world.realm, world.folder) as naming:
            await naming.name_approvers()

    with world.node():
        asyncio.run(name())


def with_service(
    world: ApprovalWorld,
    says: Callable[[ApprovalDispatch], DispatchReply],
    scenario: Any,
    **variables: str,
) -> None:
    async def serve() -> None:
        connection = Connection(world.server.url_for(Role.APPROVER, realm=world.realm))
        await connection.open()
        service = ApprovalService(connection, desk, says)
        await service.open()
        try:
            async with world:
                await scenario(service)
        finally:
            await connection.close()

    desk = f"service.{world.realm}.desk"
    subject = {"ROOKERY_APPROVALS_SERVICE_SUBJECT": desk}
    name_approvers(world)
    with world.node(**subject, **variables):
        asyncio.run(serve())


def test_a_service_decides_at_once_and_its_signature_is_checked(
    server: EmbeddedServer, tmp_path: Path
):
    world = ApprovalWorld(server, "service", tmp_path)

    def says(asked: ApprovalDispatch) -> DispatchReply:
        if asked.approval_id.startswith("off."):
            return DispatchReply(outcome=DispatchOutcome.UNAVAILABLE)
        wanted = "denied" if asked.approval_id.startswith("no.") else "approved"
        return DispatchReply(outcome=DispatchOutcome.DECIDED, answer=word(asked, wanted))

    async def scenario(service: ApprovalService) -> None:
        yes = await (await world.client.submit("yes", "strike('yes')")).result(30)
        assert yes.result == "struck yes", yes
        no = await (await world.client.submit("no", "strike('no')")).result(30)
        assert no.error is not None
        assert "approval.denied" in no.error.message
        assert world.strike_calls() == ["yes"]
        (answered,) = [f for f in await world.facts("yes") if f["type"] == "approval.answered.v1"]
        assert (answered["actor"], answered["verified"]) == ("ann", True)
        off = await (await world.client.submit("off", "strike('off')")).result(30)
        assert off.error is not None
        assert "approval.dispatcher_unavailable" in off.error.message
        (closed,) = [f for f in await world.facts("off") if f["type"] == "approval.closed.v1"]
        assert closed["status"] == "dispatcher_unavailable"

    with_service(world, says, scenario, ROOKERY_APPROVALS_DISPATCHERS="service")


def test_a_request_without_an_answer_is_escalated(server: EmbeddedServer, tmp_path: Path):
    world = ApprovalWorld(server, "escalation", tmp_path)

    def says(asked: ApprovalDispatch) -> DispatchReply:
        return DispatchReply(outcome=DispatchOutcome.DECIDED, answer=word(asked))

    async def scenario(service: ApprovalService) -> None:
        parked = await world.parked("s")
        assert not service.asked
        await world.check_end(parked)
        assert len(service.asked) == 1
        kinds = [fact["type"] for fact in await world.facts("s")]
        assert kinds.index("approval.escalated.v1") < kinds.index("approval.answered.v1")

    with_service(
        world,
        says,
        scenario,
        ROOKERY_APPROVALS_ESCALATE_TO="service",
        ROOKERY_APPROVALS_ESCALATE_AFTER_MS="1500",
    )


def webhook_node(world: ApprovalWorld, web: Web) -> NodeProcess:
    return world.node(
        ROOKERY_APPROVALS_DISPATCHERS="webhook",
        ROOKERY_APPROVALS_WEBHOOK_URL=f"http://127.0.0.1:{web.port}/ask",
        ROOKERY_APPROVALS_WEBHOOK_SECRET=SECRET,
        ROOKERY_APPROVALS_CALLBACK_PORT="0",
    )


def post(url: str, body: bytes, message_id: str) -> int:
    place = urlsplit(url)
    connection = HTTPConnection(str(place.hostname), int(place.port or 0), timeout=90)
    try:
        headers = WebhookKey(SECRET).sign(message_id, body, SystemClock().now_ms())
        connection.request("POST", place.path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_webhook_is_posted_to_and_answers_through_the_callback(
    server: EmbeddedServer, tmp_path: Path, web: Web
):
    world = ApprovalWorld(server, "webhook", tmp_path)
    web.pages["/ask"] = answer(status="202 Accepted")

    async def scenario(node: NodeProcess) -> None:
        async with world:
            parked = await world.parked("s")
            await until(lambda: web.asked)
            (posted,) = web.asked
            headers = {name.lower(): value for name, value in posted.headers.items()}
            WebhookKey(SECRET).verify(headers, posted.body, SystemClock().now_ms())
            asked = understood(posted.body)
            assert asked.approval_id == parked.approval.approval_id

            async def back(answered: DecideApproval, message_id: str) -> int:
                body = msgspec.json.encode(on_the_wire(answered))
                return await asyncio.to_thread(post, node.callback, body, message_id)

            good = word(asked)
            forged = msgspec.structs.replace(good, actor="bob")
            assert await back(forged, "m1") == 403
            assert world.strike_calls() == []
            assert await back(good, headers["webhook-id"]) == 200
            await world.check_end(parked)
            assert await back(good, headers["webhook-id"]) == 409
            assert await back(good, "m3") == 409
            assert world.strike_calls() == ["s"]

    name_approvers(world)
    with webhook_node(world, web) as node:
        asyncio.run(scenario(node))


@pytest.mark.parametrize(
    "approvals",
    [
        ApprovalsConfig(dispatchers=("service",)),
        ApprovalsConfig(escalate_to="service"),
        ApprovalsConfig(dispatchers=("webhook",), webhook_url="http://127.0.0.1/"),
        ApprovalsConfig(dispatchers=("webhook",), webhook_secret=SECRET),
        ApprovalsConfig(
            dispatchers=("webhook",),
            webhook_url="https://ops@example.test/",
            webhook_secret=SECRET,
        ),
    ],
)
def test_a_dispatcher_with_invalid_settings_is_refused(
    server: EmbeddedServer, approvals: ApprovalsConfig
):
    with pytest.raises(Refused):
        ApprovalDispatchers(approvals, JetStreamBus(server.url), SystemClock().now_ms)
