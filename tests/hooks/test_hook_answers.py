"""What a process answers for a hook: only the answer to this very invocation counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from rookery.actors.hooks.executors import ServiceExecutor, answer_invocation, service
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.hook_protocol import (
    ANSWER_BYTES_MAX,
    decode_answer,
    decode_invocation,
    invocation_id,
)
from rookery.schemas.hooks import NatsHook
from rookery.schemas.ids import HookId, RunId
from rookery.schemas.seed.hook import HookPoint, HookResponseClass
from rookery.schemas.seed.hook_invocation import HookCancellationToken, HookInput, HookView
from rookery.schemas.seed.refs import EntityKind, EntityRef, SourceKind, SourceRef
from tests.hooks.hook_fixtures import CONTEXT, RESPONSES, registration, spec

ID = "run/before_tool_call/run.1/guard"
DENY = RESPONSES[HookResponseClass.DENY]
SERVED = registration(spec(HookPoint.BEFORE_TOOL_CALL, HookResponseClass.DENY), executor=NatsHook())
INPUT = HookInput(
    hook_id=HookId("guard"),
    point=HookPoint.BEFORE_TOOL_CALL,
    run_id=RunId("run"),
    agent_id=CONTEXT.agent_id,
    source=SourceRef.new("guard", SourceKind.HOOK),
    package_fingerprint=CONTEXT.package_fingerprint,
    view=msgspec.structs.replace(
        HookView.redacted("pay"),
        subject_refs=(EntityRef.new(EntityKind.TOOL_CALL, HookId("run.1")),),
    ),
    cancellation=HookCancellationToken(),
)


def answer(**fields: Any) -> bytes:
    return json.dumps({"invocation_id": ID, **fields}).encode()


def nested(depth: int) -> bytes:
    return answer(response="x").replace(b'"x"', b"[" * depth + b"]" * depth)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "HOOK_ANSWER_INVALID"),
        (b"no", "HOOK_ANSWER_INVALID"),
        (b"\xff\xfe", "HOOK_ANSWER_INVALID"),
        (b"[]", "HOOK_ANSWER_INVALID"),
        (answer(), "HOOK_ANSWER_INVALID"),
        (answer(response={"type": "sudo"}), "HOOK_ANSWER_INVALID"),
        (answer(response={"type": "deny"}), "HOOK_ANSWER_INVALID"),
        (answer(response={"type": "deny", "payload": {"code": 1}}), "HOOK_ANSWER_INVALID"),
        (answer(response=None), "HOOK_ANSWER_INVALID"),
        (answer(pad="x" * ANSWER_BYTES_MAX), "HOOK_ANSWER_INVALID"),
        (b"x" * 10_000_000, "HOOK_ANSWER_INVALID"),
        (nested(33), "HOOK_ANSWER_INVALID"),
        (nested(1_000), "HOOK_ANSWER_INVALID"),
        (nested(100_000), "HOOK_ANSWER_INVALID"),
        (b'{"a": ' * 1_000, "HOOK_ANSWER_INVALID"),
        (answer(error={"code": "X", "message": "broken"}), "HOOK_FAILED"),
    ],
    ids=range(16),
)
def test_what_is_no_answer_is_refused_with_a_code(body: bytes, code: str):
    with pytest.raises(Refused) as caught:
        decode_answer(body, ID)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "other",
    [
        "other/before_tool_call/run.1/guard",
        "run/after_tool_call/run.1/guard",
        "run/before_tool_call/run.2/guard",
        "run/before_tool_call/run.1/other",
        "",
    ],
)
def test_an_answer_to_another_invocation_counts_for_nothing(other: str):
    body = encode_json({"invocation_id": other, "response": {"type": "observe_only"}})
    with pytest.raises(Refused, match="it answers another invocation"):
        decode_answer(body, ID)


def test_brackets_in_texts_are_no_depth():
    deep = {"code": "c", "redacted_summary": '[{"' * 200}
    assert decode_answer(answer(response={"type": "deny", "payload": deep}), ID).response_class


def test_an_invocation_has_the_same_id_whenever_it_is_repeated():
    assert invocation_id(INPUT) == ID
    without = msgspec.structs.replace(INPUT, view=HookView.redacted("pay"))
    assert invocation_id(without) == "run/before_tool_call/0/guard"


# --- a node and a process -------------------------------------------------------------------------


def asked(handle: Callable[[bytes], Awaitable[bytes]] | None, what: str = "invoke") -> Any:
    """What the executor of a node makes of a process's answer; or the code of its error."""

    async def scenario() -> Any:
        server = MemoryServer(lambda: 1_000)
        bus = MemoryBus(server)
        if handle is not None:
            server.realm("default").hook_handlers["guard"] = handle
        executor = ServiceExecutor(bus.hook_services, SERVED, realm="default", now_ms=lambda: 1_000)
        if what == "probe":
            return await executor.probe()
        return await getattr(executor, what)(INPUT)

    try:
        return asyncio.run(scenario())
    except CodedError as error:
        return error.code


def test_a_process_gets_the_invocation_and_its_response_comes_back():
    seen = []

    async def judge(hook_input: HookInput) -> Any:
        assert hook_input == INPUT
        return DENY

    async def handle(body: bytes) -> bytes:
        seen.append(decode_invocation(body))
        return await answer_invocation(body, judge)

    assert asked(handle) == DENY
    assert asked(handle, "invoke_dry") == DENY
    assert [one.dry_run for one in seen] == [False, True]
    assert {(one.invocation_id, one.realm, one.due_ms) for one in seen} == {(ID, "default", 1_250)}


def test_an_error_of_the_hook_is_an_answer_and_shows_that_it_is_there():
    async def broken(_: HookInput) -> Any:
        raise KeyError("amount")

    async def handle(body: bytes) -> bytes:
        return await answer_invocation(body, broken)

    assert asked(handle) == "HOOK_FAILED"
    assert asked(handle, "probe") is None


def test_without_a_process_the_invocation_fails_and_the_hook_is_not_registered():
    assert asked(None) == Failed("NO_ANSWER", "").code
    assert asked(None, "probe") == "HOOK_EXECUTOR_MISSING"


def test_a_process_that_hangs_holds_up_no_registration(monkeypatch: pytest.MonkeyPatch):
    async def handle(_: bytes) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(service, "PROBE_S", 0.0)
    monkeypatch.setattr(service, "GRACE_S", 0.0)
    assert asked(handle, "probe") == "HOOK_EXECUTOR_MISSING"


def test_an_invocation_of_another_form_is_answered_with_an_error():
    async def never(_: HookInput) -> Any:
        raise AssertionError

    body = asyncio.run(answer_invocation(b"[]", never))
    with pytest.raises(Refused, match="answers another invocation"):
        decode_answer(body, ID)
