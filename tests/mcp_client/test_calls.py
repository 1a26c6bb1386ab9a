"""Calls of a server's tools by the host: results, failures, and what a server may not do."""

from __future__ import annotations

import asyncio
import base64
import logging
import threading

import pytest
from msgspec import UNSET

from rookery.actors.tools.hosts import NotCalled, OutcomeUnknown, PastAttempt
from rookery.actors.tools.validation.capability_checks import schema_digest
from rookery.schemas.calls import ApprovalMode, CallOutcome
from rookery.schemas.digest import digest_bytes
from rookery.schemas.run import SideEffect
from rookery.schemas.surfaces import SurfacePolicy, ToolPolicy
from tests.mcp_client.server_fixtures import OpenServer, code_of, hostile, opened, play, until


def test_results_are_values_and_failures_have_codes():
    async def scenario() -> None:
        async with opened(hostile()) as server:
            assert await server.call("echo", {"text": "x"}) == CallOutcome(value="x")
            for tool, code, text in (
                ("fail", "TOOL_ERROR", "it did not work"),
                ("refuse", "TOOL_ERROR", "no such thing"),
                ("lie", "INVALID_RESULT", "number"),
                ("unstructured", "INVALID_RESULT", "output schema"),
                ("bad_image", "INVALID_RESULT", "base64"),
                ("gone", "UNKNOWN_TOOL", "shop_gone"),
            ):
                outcome = await server.call(tool)
                assert code_of(outcome) == code
                assert outcome.error is not UNSET
                assert text in outcome.error.message

    play(scenario())


def test_the_progress_of_a_call_is_in_the_log_of_its_server():
    async def scenario() -> None:
        async with opened(hostile()) as server:
            await server.call("echo", {"text": "x"})
            await until(
                lambda: "rookery: shop_echo (echo): 1 of 2 half way" in server.connection.log
            )

    play(scenario())


def test_contents_are_refs_to_the_blob_store():
    async def scenario() -> None:
        async with opened(hostile()) as server:
            text, image = (await server.call("image")).value
            assert text == {"type": "text", "text": "look"}
            ref = image["content"]
            assert (ref["kind"], ref["mime"], ref["size_bytes"]) == ("image", "image/png", 5)
            assert ref["content_hash"] == digest_bytes(b"hello")
            assert await server.blobs.get(ref["content_hash"]) == base64.b64decode("aGVsbG8=")

    play(scenario())


def test_tools_are_external_and_need_an_approval_whatever_the_server_hints():
    async def scenario() -> None:
        one = ToolPolicy(approval=ApprovalMode.NONE, side_effect=SideEffect.READ, idempotent=True)
        policy = SurfacePolicy(tools={"echo": one, "nowhere": one}, allow=("echo", "fail"))
        async with opened(hostile(policy=policy)) as server:
            echo, fail = server.capabilities
            assert (fail.approval_policy, fail.side_effect, fail.idempotent) == (
                ApprovalMode.MANUAL,
                SideEffect.EXTERNAL_SYSTEM,
                False,
            )
            assert (echo.approval_policy, echo.side_effect, echo.idempotent) == (
                ApprovalMode.NONE,
                SideEffect.READ,
                True,
            )
            assert "nowhere" in server.connection.problems
            assert server.connection.instructions == "be careful"

    play(scenario())


def test_a_call_that_takes_too_long_ends_and_its_server_is_notified():
    async def scenario() -> None:
        async with opened(hostile()) as server:
            outcome = await server.call("sleep", {"seconds": 600}, timeout_ms=100)
            assert code_of(outcome) == "TIMEOUT_TOOL"
            await _cancels(server, 1)

    play(scenario())


def test_a_cancelled_call_ends_and_its_server_is_notified():
    async def scenario() -> None:
        async with opened(hostile()) as server:
            call = asyncio.ensure_future(server.call("sleep", {"seconds": 600}, call_id="c1"))
            while (live := server.connection.host._task.live) is None or not live.in_flight:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            server.connection.host.cancel("another")
            server.connection.host.cancel("c1")
            assert code_of(await call) == "CANCELLED"
            await _cancels(server, 1)

    play(scenario())


async def _cancels(server: OpenServer, count: int) -> None:
    while (await server.call("cancels")).value != str(count):
        await asyncio.sleep(0.02)


def test_a_call_that_may_not_act_is_not_made():
    async def scenario() -> None:
        async with opened(hostile()) as server:
            with pytest.raises(NotCalled):
                await server.call("die", may_act=lambda: False)
            assert (await server.call("echo", {"text": "x"})).value == "x"

    play(scenario())


def test_a_call_whose_server_dies_has_an_unknown_outcome_and_the_next_one_a_new_server():
    async def scenario() -> None:
        async with opened(hostile()) as server:
            first = (await server.call("environ")).value["pid"]
            with pytest.raises(OutcomeUnknown):
                await server.call("die")
            assert (await server.call("environ")).value["pid"] != first
            states = [str(report.state) for report in server.reports]
            assert states[:5] == [
                "PendingConnect",
                "Connected",
                "Failed",
                "PendingConnect",
                "Connected",
            ]
            assert "ended" in server.reports[2].error
            past = PastAttempt("shop_die", "die", 1, "", 0)
            with pytest.raises(OutcomeUnknown):
                await server.connection.host.query_outcome(past)

    play(scenario())


def test_calls_run_beside_each_other():
    async def scenario() -> None:
        async with opened(hostile()) as server:
            slow = asyncio.ensure_future(server.call("sleep", {"seconds": 600}, call_id="slow"))
            texts = [f"{number}" for number in range(32)]
            calls = [server.call("echo", {"text": text}, call_id=text) for text in texts]
            assert [outcome.value for outcome in await asyncio.gather(*calls)] == texts
            assert not slow.done()
            server.connection.host.cancel("slow")
            await slow

    play(scenario())


@pytest.mark.parametrize("tool", ["change", "announce"])
def test_a_tool_that_changes_after_it_was_recorded_is_not_called(tool: str):
    """The words of a tool are part of what an approver reads; a server may say that they change,
    or not."""
    policy = SurfacePolicy(tools={tool: ToolPolicy(approval=ApprovalMode.NONE)})

    async def scenario() -> None:
        async with opened(hostile(policy=policy)) as server:
            host, known = server.connection.host, server.capabilities
            (echo,) = (one for one in known if one.name == "shop_echo")
            recorded = schema_digest(echo)
            given = {"text": "x"}
            assert (await server.call("echo", given, schema_digest=recorded)).value == "x"
            await server.call(tool)
            assert code_of(await server.call("echo", given, schema_digest=recorded)) == (
                "TOOL_CHANGED"
            )
            await until(lambda: server.capabilities != known)
            await host.wait_ready("shop_echo")
            (echo,) = (one for one in server.capabilities if one.name == "shop_echo")
            assert echo.description == "the second words"
            outcome = await server.call("echo", given, schema_digest=schema_digest(echo))
            assert outcome.value == "x"

    play(scenario())


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
def test_what_a_server_asks_of_its_client_is_refused_with_a_code(method: str):
    async def scenario() -> None:
        async with opened(hostile()) as server:
            assert int((await server.call("ask", {"method": method})).value) < 0

    play(scenario())


def test_what_is_sent_beside_structured_content_is_part_of_the_value():
    """The schema is that of the structured content alone."""

    async def scenario() -> None:
        async with opened(hostile()) as server:
            value = (await server.call("chart")).value
            (image,) = value.pop("_content")
            assert value == {"number": 7}
            assert await server.blobs.get(image["content"]["content_hash"]) == b"hello"

    play(scenario())


def test_only_what_the_connections_log_is_silenced():
    root, said = logging.getLogger(), list[str]()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    async def scenario() -> None:
        async with opened(hostile()):
            logger = logging.getLogger("mcp.shared.session")
            logger.warning("of another thread")
            ours = threading.Thread(target=logger.warning, args=("flood",), name="rookery-mcp")
            ours.start()
            ours.join()

    heard = Heard()
    root.addHandler(heard)
    try:
        play(scenario())
    finally:
        root.removeHandler(heard)
    assert "of another thread" in said
    assert "flood" not in said
