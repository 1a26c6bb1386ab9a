"""Clients that others wrote are served: the Python and the JavaScript SDK, and bare HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, SendMessageRequest, TaskState
from a2a.utils.signing import SignatureVerificationError, create_signature_verifier

from rookery.bus.ports import Filter
from tests.a2a.a2a_realms import (
    PROGRAM,
    TOKENS,
    A2aRealm,
    Gateway,
    RpcError,
    events,
    message_of,
    rpc,
    state_of,
    text_of,
)
from tests.a2a.webhooks import Webhook
from tests.chaos.gateway_kills import STEPS, follow_streams, read_again
from tests.node_packages import node_folder
from tests.stock_client import until

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[A2aRealm]:
    realm = A2aRealm(tmp_path_factory.mktemp("a2a"))
    with realm.agent(PROGRAM, description="Counts steps."):
        yield realm


@pytest.fixture(scope="module")
def gateway(realm: A2aRealm) -> Iterator[Gateway]:
    with realm.gateway("coder", "ghost") as gateway:
        yield gateway


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
def test_the_python_sdk_streams_a_task_to_its_end(gateway: Gateway, binding: str):
    async def scenario() -> None:
        async with gateway.http() as http:
            card = await A2ACardResolver(http, f"{gateway.url}/coder").get_agent_card()
            config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
            client = ClientFactory(config).create(card)
            message = Message(
                message_id=f"py-{binding}", role=Role.ROLE_USER, parts=[Part(text="steps 2")]
            )
            found = [one async for one in client.send_message(SendMessageRequest(message=message))]
            assert found[0].task.status.state == TaskState.TASK_STATE_SUBMITTED
            texts = [
                one.artifact_update.artifact.parts[0].text
                for one in found
                if one.HasField("artifact_update")
            ]
            assert texts == ["step 1", "step 2", "done steps 2"]
            assert found[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED

    asyncio.run(scenario())


def test_the_card_is_signed_by_the_realms_key_and_a_changed_one_is_not(gateway: Gateway):
    async def scenario() -> None:
        async with httpx.AsyncClient() as http:
            keys = (await http.get(f"{gateway.url}/.well-known/jwks.json")).json()["keys"]
            card = await A2ACardResolver(http, gateway.url).get_agent_card()
            assert (card.name, card.description) == ("coder", "Counts steps.")
            (key,) = keys
            verify = create_signature_verifier(lambda *_: jwt.PyJWK(key), ["EdDSA"])
            verify(card)
            card.description = "Counts anything."
            with pytest.raises(SignatureVerificationError):
                verify(card)

    asyncio.run(scenario())


def test_the_javascript_sdk_verifies_the_card_and_reads_its_tasks(gateway: Gateway):
    program = HERE / "javascript_agent_client.mjs"
    folder = node_folder("a2a-client", ("@a2a-js/sdk@1.3.0",), program)
    ended = subprocess.run(
        ["node", program.name, gateway.url, TOKENS["bob"]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert seen["name"] == "coder"
    for result in seen["results"]:
        assert result["states"][0] == "TASK_STATE_SUBMITTED"
        assert result["states"][-1] == "TASK_STATE_COMPLETED"
        assert (result["artifacts"], result["state"]) == (3, "TASK_STATE_COMPLETED")


def test_a_repeated_message_is_the_same_task_and_runs_once_for_any_gateway(
    realm: A2aRealm, gateway: Gateway
):
    async def scenario() -> None:
        async with gateway.http() as http:
            params = {"message": message_of("steps 1", "once")}
            first = (await rpc(http, "SendMessage", params))["task"]
            assert (await rpc(http, "SendMessage", params))["task"] == first
        with realm.gateway() as other:
            async with other.http() as http:
                assert (await rpc(http, "SendMessage", params))["task"] == first
                assert await rpc(http, "GetTask", {"id": first["id"]}) == first
        assert realm.counted.count("once") == 1

    asyncio.run(scenario())


def test_a_client_of_the_older_protocol_sends_reads_and_resumes(gateway: Gateway):
    parts = [{"kind": "text", "text": "steps 1"}]
    message = {"kind": "message", "messageId": "older", "role": "user", "parts": parts}

    async def scenario() -> None:
        async with gateway.http() as http:
            del http.headers["A2A-Version"]
            task = await rpc(http, "message/send", {"message": message})
            assert task["status"]["state"] == "completed"
            assert (await rpc(http, "tasks/get", {"id": task["id"]}))["id"] == task["id"]
            resumed = events(http, "tasks/resubscribe", {"id": task["id"]}, after="0.0.0")
            found = [one async for one in resumed]
            assert found[-1][1]["status"]["state"] == "completed"
            assert all(event_id for event_id, _ in found)

    asyncio.run(scenario())


def test_a_client_sees_its_own_tasks_only_and_none_without_a_token(gateway: Gateway):
    async def scenario() -> None:
        async with gateway.http() as bob, gateway.http("ann") as ann:
            task = (await rpc(bob, "SendMessage", {"message": message_of("hi", "own")}))["task"]
            for method in ("GetTask", "CancelTask"):
                with pytest.raises(RpcError) as refused:
                    await rpc(ann, method, {"id": task["id"]})
                assert refused.value.code == -32001
            assert (await rpc(ann, "ListTasks", {}))["tasks"] == []
            listed = (await rpc(bob, "ListTasks", {"pageSize": 1}))["tasks"]
            assert len(listed) == 1
        async with httpx.AsyncClient(base_url=gateway.url) as nobody:
            assert (await nobody.post("/coder", json={})).status_code == 401
            assert (await nobody.get("/coder/tasks")).status_code == 401

    asyncio.run(scenario())


def test_a_message_to_a_session_that_is_not_there_is_refused_with_its_code(gateway: Gateway):
    async def scenario() -> None:
        async with gateway.http() as http:
            with pytest.raises(RpcError, match="PEER_NOT_ATTENDED") as refused:
                await rpc(http, "SendMessage", {"message": message_of("hi", "lost")}, "ghost")
            assert refused.value.code == -32004
            too_long = message_of("x" * 300_000, "long")
            with pytest.raises(RpcError, match="PAYLOAD_TOO_LARGE") as refused:
                await rpc(http, "SendMessage", {"message": too_long})
            assert refused.value.code == -32602
            too_long = message_of("x" * (1 << 20), "longer")
            with pytest.raises(RpcError) as refused:
                await rpc(http, "SendMessage", {"message": too_long})
            assert refused.value.code == -32600

    asyncio.run(scenario())


def test_a_task_that_waits_for_its_client_continues_with_a_further_message(gateway: Gateway):
    async def scenario() -> None:
        async with gateway.http() as http:
            for text in ("receive", "ask"):
                params: dict[str, Any] = {"message": message_of(text, f"begin-{text}")}
                task = (await rpc(http, "SendMessage", params))["task"]
                assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
                further = message_of("blue", f"more-{text}", taskId=task["id"])
                ended = (await rpc(http, "SendMessage", {"message": further}))["task"]
                assert ended["id"] == task["id"]
                assert ended["status"]["state"] == "TASK_STATE_COMPLETED"
                assert text_of(ended["artifacts"][0]) == "done blue"
                assert (await rpc(http, "SendMessage", {"message": further}))["task"] == ended
                late = message_of("red", f"late-{text}", taskId=task["id"])
                with pytest.raises(RpcError) as refused:
                    await rpc(http, "SendMessage", {"message": late})
                assert refused.value.code == -32004

    asyncio.run(scenario())


def test_a_task_that_waits_for_an_approver_says_so_and_can_be_cancelled(
    realm: A2aRealm, gateway: Gateway
):
    async def scenario() -> None:
        async with gateway.http() as http:
            params = {"message": message_of("pay", "pay")}
            task = (await rpc(http, "SendMessage", params))["task"]
            assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
            assert "waits for an approver" in text_of(task["status"]["message"])
            cancelled = await rpc(http, "CancelTask", {"id": task["id"]})
            assert cancelled["status"]["state"] == "TASK_STATE_CANCELED"
            assert await rpc(http, "CancelTask", {"id": task["id"]}) == cancelled
            after = (await rpc(http, "SendMessage", {"message": message_of("hi", "next")}))["task"]
            assert after["status"]["state"] == "TASK_STATE_COMPLETED"
        assert realm.counted.count("next") == 1

    asyncio.run(scenario())


def test_a_stream_is_resumed_behind_any_of_its_events(gateway: Gateway):
    async def scenario() -> None:
        async with gateway.http() as http:
            params = {"message": message_of("steps 3", "resumed")}
            whole = [one async for one in events(http, "SendStreamingMessage", params)]
            ids = [event_id for event_id, _ in whole]
            assert len(set(ids)) == len(ids) >= 7
            assert state_of(whole[-1][1]) == "COMPLETED"
            task = {"id": whole[0][1]["task"]["id"]}
            for number, after in enumerate(ids, 1):
                rest = [one async for one in events(http, "SubscribeToTask", task, after=after)]
                assert rest == whole[number:]
            with pytest.raises(RpcError):  # An ended task has nothing to come.
                await anext(events(http, "SubscribeToTask", task))

    asyncio.run(scenario())


def test_each_event_is_pushed_with_its_credential_which_no_fact_shows(
    realm: A2aRealm, gateway: Gateway
):
    async def scenario() -> None:
        with Webhook(refusals=1) as webhook:
            target = {
                "id": "hook",
                "url": webhook.url,
                "token": "of-the-client",
                "authentication": {"scheme": "Bearer", "credentials": "very-secret"},
            }
            configuration = {"taskPushNotificationConfig": target}
            message = message_of("steps 2", "pushed")
            params = {"message": message, "configuration": configuration}
            async with gateway.http() as http:
                task = (await rpc(http, "SendMessage", params))["task"]
                await until(lambda: webhook.has("COMPLETED"), "the last event is pushed")
                of_task = {"taskId": task["id"]}
                listed = await rpc(http, "ListTaskPushNotificationConfigs", of_task)
                assert listed["configs"] == [target | of_task]
                await rpc(http, "DeleteTaskPushNotificationConfig", of_task | {"id": "hook"})
                assert not await rpc(http, "ListTaskPushNotificationConfigs", of_task)
            assert {one.authorization for one in webhook.taken} == {"Bearer very-secret"}
            assert {one.token for one in webhook.taken} == {"of-the-client"}
            pushed = [one.event for one in webhook.taken]
            texts = [
                text_of(one["artifactUpdate"]["artifact"])
                for one in pushed
                if "artifactUpdate" in one
            ]
            assert texts == ["step 1", "step 2", "done steps 2"]
        async with realm.client() as client:
            pages = client.journal.scan(Filter("peer", "coder"))
            facts = b"".join([one.body async for page in pages for one in page])
        assert b"peer.push_target_set.v1" in facts
        assert b"very-secret" not in facts

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["ftp://a.example/x", "nothing"])
def test_a_push_target_that_is_no_url_of_http_is_refused(gateway: Gateway, url: str):
    async def scenario() -> None:
        async with gateway.http() as http:
            params = {"message": message_of("hi", "unpushed")}
            task = (await rpc(http, "SendMessage", params))["task"]
            target = {"taskId": task["id"], "url": url}
            with pytest.raises(RpcError) as refused:
                await rpc(http, "CreateTaskPushNotificationConfig", target)
            assert refused.value.code == -32602

    asyncio.run(scenario())


def test_streams_of_a_killed_gateway_go_on_by_their_cursors_and_no_task_runs_twice(
    realm: A2aRealm, gateway: Gateway
):
    async def scenario() -> None:
        clients = await follow_streams(realm, streams=5, kills=1, seed=7)
        assert sum(client.cuts for client in clients), "no stream was cut"
        assert [client.events for client in clients] == await read_again(gateway, clients)
        steps = [f"step {number + 1}" for number in range(STEPS)]
        for client in clients:
            assert client.steps == [*steps, f"done {client.text}"]
            assert realm.counted.count(client.message_id) == 1

    asyncio.run(scenario())
