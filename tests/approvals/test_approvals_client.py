"""The Python client reads, answers and revokes approvals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.bus.client.client import Client
from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.approvals.lists import ApprovalState, GrantState
from rookery.schemas.approvals.records import ApprovalLifecycleStatus
from rookery.schemas.errors import Refused
from tests.approvals.approval_world import ANN, ApprovalWorld


def test_an_approver_reads_answers_and_revokes(tmp_path: Path):
    with EmbeddedServer(tmp_path / "store", admin=True) as server:
        world = ApprovalWorld(server, "clients", tmp_path)
        with world.node():
            asyncio.run(approve_and_revoke(world))
            with SyncClient(
                Client(server.url_for(Role.OPERATOR, realm="clients"), realm="clients")
            ) as client:
                deny_and_revoke(client)


async def approve_and_revoke(world: ApprovalWorld) -> None:
    async with world:
        client = world.client
        await world.name_approvers()
        parked = await world.parked("s")
        approval = await client.approval(parked.approval.approval_id)
        assert approval == parked.approval
        with pytest.raises(Refused, match="SIGNATURE_REQUIRED"):
            await client.decide(approval, "approved", actor="ann")
        receipt = await client.decide(
            approval, "approved_for_session", actor="ann", reason="fine", sign=ANN.sign
        )
        assert receipt.status is ApprovalLifecycleStatus.APPROVED_FOR_SESSION
        assert receipt.verified
        await world.check_end(parked)
        assert await client.approvals() == ()
        (ended,) = await client.approvals("s", ended=True)
        assert (ended.state, ended.reason) == (ApprovalState.APPROVED_FOR_SESSION, "fine")
        (grant,) = await client.grants("s")
        assert (grant.operation_id, grant.tool) == (None, "strike")
        with pytest.raises(Refused, match="SIGNATURE_REQUIRED"):
            await client.revoke_grant(grant, actor="ann")
        revoked = await client.revoke_grant(grant, actor="ann", sign=ANN.sign_revocation)
        assert revoked.state == "revoked"
        assert await client.grants("s") == ()
        states = {one.state for one in await client.grants("s", ended=True)}
        assert states == {GrantState.CONSUMED, GrantState.REVOKED}
        with pytest.raises(Refused, match="APPROVAL_NOT_FOUND"):
            await client.approval("s.nothing")


def deny_and_revoke(client: SyncClient) -> None:
    run = client.submit("t", "strike('t')")
    while not (waiting := client.approvals("t")):
        pass
    assert client.approval(waiting[0].approval_id) == waiting[0]
    client.decide(waiting[0], "denied", actor="ann", sign=ANN.sign)
    ended = run.result(30)
    assert ended.error is not None
    assert "approval.denied" in ended.error.message
    assert client.grants("t") == ()
    (revoked,) = [g for g in client.grants(ended=True) if g.state == "revoked"]
    again = client.revoke_grant(revoked, actor="ann", sign=ANN.sign_revocation)
    assert again.state == "revoked"
