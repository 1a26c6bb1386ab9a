"""The typed faces of the live machines, each method accepted and refused by a node."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import nats
import pytest
from nats.aio.msg import Msg

from rookery.bus.client import Client
from rookery.bus.client.machines import (
    AuthLeaseHandle,
    ExternalToolSurfaceHandle,
    PeerCommsHandle,
    SessionAdmissionHandle,
    TurnStateHandle,
)
from rookery.bus.client.machines.machine_handle import effects_of
from rookery.bus.roles import Role
from rookery.schemas.commands import HandleInput
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import surface as surface_facts
from rookery.schemas.machines.transition import RejectionKind, TransitionRejected
from tests.execution.clients.machine_calls import (
    ENVELOPE,
    KEY,
    RUN,
    STORIES,
    Step,
    new_session,
    open_session,
)
from tests.execution.realm_fixture import Serving

HANDLES = tuple(dict.fromkeys(handle for handle, _ in STORIES.values()))
NEVER_ACCEPTED = {(TurnStateHandle, "force_cancel_no_run")}
"""No history leads to a running host without a run."""
OBSERVERS = {"observe"}
READS = {
    *("snapshot", "surface_snapshot", "diagnostic_snapshot", "visible_surfaces"),
    *("removing_surfaces", "pending_surfaces", "has_pending_or_staged", "snapshot_epoch"),
    *("snapshot_aligned_epoch", "pending_server_ids", "outbound_state", "inbound_state", "state"),
    *("current_watermark_ms", "current_phase", "is_in_flight", "should_preempt_on_input"),
    *("projection_freshness", "projection_frontier_ms", "is_projection_stale_immediate"),
    "reconnect_policy_on_clean_close",
}
NEVER_REFUSED = {
    "release_lease",
    "release_credential_lifecycle",
    "acquire_lease",
    "request_credential",
} | {"restore_auth_lifecycle_snapshot"}
"""Of a lease whatever its state."""


def with_client(serving: Serving, story: Callable[[Client], Awaitable[None]]) -> None:
    async def play() -> None:
        async with Client(serving.url_for(Role.DRIVER), realm=serving.realm) as client:
            await story(client)

    asyncio.run(play())


def face_of(handle: type[Any], client: Client, session: str) -> Any:
    return handle(client) if handle is AuthLeaseHandle else handle(client, session)


def methods_of(handle: type[Any]) -> set[str]:
    found = inspect.getmembers(handle, inspect.isfunction)
    return {name for name, _ in found if not name.startswith("_")} - OBSERVERS


# --- accepted -------------------------------------------------------------------------------------


def test_the_stories_have_every_method_of_every_face() -> None:
    called = {(handle, step.method) for handle, steps in STORIES.values() for step in steps}
    methods = {(handle, method) for handle in HANDLES for method in methods_of(handle)}
    assert methods - called == NEVER_ACCEPTED


@pytest.mark.parametrize("name", STORIES)
def test_a_live_machine_accepts_each_step_and_answers_with_its_type(
    serving: Serving, name: str
) -> None:
    handle, steps = STORIES[name]

    async def story(client: Client) -> None:
        session = new_session()
        await open_session(client, session)
        face = face_of(handle, client, session)
        for number, step in enumerate(steps, 1):
            answer = await getattr(face, step.method)(*step.args)
            assert step.fits(answer), (number, step.method, answer)

    with_client(serving, story)


# --- refused --------------------------------------------------------------------------------------


def calls() -> list[tuple[type[Any], Step]]:
    """One call of every method."""
    known = {(handle, step.method): step for handle, steps in STORIES.values() for step in steps}
    known |= {key: Step(key[1]) for key in NEVER_ACCEPTED}
    return [(handle, step) for (handle, _), step in known.items()]


def test_every_input_is_refused_by_its_machine_after_the_session_was_destroyed(
    serving: Serving,
) -> None:
    async def story(client: Client) -> None:
        session = new_session()
        await open_session(client, session)
        await client.ask("admission", session, HandleInput(input="Destroy"))
        for handle, step in calls():
            if step.method in READS or handle is AuthLeaseHandle:
                continue
            call = getattr(face_of(handle, client, session), step.method)
            if inspect.signature(call).return_annotation == "bool":
                assert await call(*step.args) is False, step.method
                continue
            with pytest.raises(TransitionRejected) as rejected:
                await call(*step.args)
            assert rejected.value.kind is RejectionKind.GUARD_REJECTED
            assert rejected.value.code == "GUARD_REJECTED"
            assert "Destroyed" in rejected.value.reason, step.method

    with_client(serving, story)


def test_a_lease_that_is_not_there_is_refused_by_its_key(serving: Serving) -> None:
    async def story(client: Client) -> None:
        leases, missing = AuthLeaseHandle(client), KEY.parse("dev:nothing")
        for handle, step in calls():
            if handle is not AuthLeaseHandle or step.method in READS | NEVER_REFUSED:
                continue
            with pytest.raises(TransitionRejected) as rejected:
                await getattr(leases, step.method)(missing, *step.args[1:])
            assert rejected.value.kind is RejectionKind.NO_MATCHING_TRANSITION
            assert rejected.value.context == f"AuthLeaseHandle::{step.method}"
            assert rejected.value.reason == "no auth lease registered for lease_key `dev:nothing`"
        assert (await leases.release_lease(missing)).phase is None

    with_client(serving, story)


def test_a_rejection_reads_as_where_it_was_raised(serving: Serving) -> None:
    async def story(client: Client) -> None:
        session = new_session()
        await open_session(client, session)
        with pytest.raises(TransitionRejected) as rejected:
            await TurnStateHandle(client, session).boundary_continue()
        assert str(rejected.value) == (
            "DSL transition rejected in TurnStateHandle::boundary_continue: "
            "guard rejected transition from phase Attached for boundary_continue"
        )

    with_client(serving, story)


def test_what_is_no_rejection_of_a_machine_is_raised_with_its_code(serving: Serving) -> None:
    async def story(client: Client) -> None:
        with pytest.raises(Refused, match="INVALID_SESSION_ID"):
            await TurnStateHandle(client, "no session").snapshot()
        session = new_session()
        await open_session(client, session)
        with pytest.raises(Refused, match="INVALID_ARGUMENT"):
            await TurnStateHandle(client, session).llm_returned_tool_calls(-1)
        with pytest.raises(Refused, match="ServerReloadRequested is not an input"):
            await ExternalToolSurfaceHandle(client, session).apply_surface_input(
                surface_facts.ServerReloadRequested(server_id="m")
            )

    with_client(serving, story)


@pytest.mark.parametrize(
    ("kind", "raised"), [("GuardRejected", TransitionRejected), ("FromTheFuture", Refused)]
)
def test_a_rejection_of_an_unknown_kind_is_refused_by_its_code(
    serving: Serving, kind: str, raised: type[Exception]
) -> None:
    """A plain NATS client is a node of another version."""

    async def play() -> None:
        async with Client(
            serving.server.url_for(Role.DRIVER, realm="newer"), realm="newer"
        ) as client:
            node = await nats.connect(serving.server.admin_url)

            async def answer(request: Msg) -> None:
                error = {"code": "GUARD_REJECTED", "message": "rejected in here: no"}
                error |= {"kind": kind, "context": "here", "reason": "no", "hint": "try this"}
                body = msgspec.json.encode({"error": error})
                await node.publish(request.reply, body, headers={"Rookery-Code": "GUARD_REJECTED"})

            await node.subscribe("rookery.newer.api.*.*", cb=answer)
            await node.flush()
            with pytest.raises(Refused, match="rejected in here: no") as refused:
                await TurnStateHandle(client, "s").primitive_applied()
            assert type(refused.value) is raised
            assert (refused.value.code, refused.value.hint) == ("GUARD_REJECTED", "try this")
            await node.close()

    asyncio.run(play())


# --- between faces --------------------------------------------------------------------------------


def test_the_faces_of_a_session_show_one_session(serving: Serving) -> None:
    async def story(client: Client) -> None:
        session = new_session()
        await open_session(client, session)
        admission, turn = (
            SessionAdmissionHandle(client, session),
            TurnStateHandle(client, session),
        )
        await admission.accept_with_completion("i", False, False, True)
        await admission.prepare(RUN)
        await turn.start_immediate_append(RUN)
        async with Client(serving.url_for(Role.DRIVER), realm=serving.realm) as other:
            assert (await TurnStateHandle(other, session).snapshot()).active_run_id == RUN
        await turn.run_completed(RUN)
        await admission.commit("i", RUN)
        with pytest.raises(TransitionRejected):
            await admission.commit("i", RUN)
        with pytest.raises(TransitionRejected):
            await PeerCommsHandle(client, new_session()).classify_external_envelope(ENVELOPE)

    with_client(serving, story)


def test_effects_are_reported_once(serving: Serving) -> None:
    async def story(client: Client) -> None:
        session = new_session()
        await open_session(client, session)
        body = HandleInput(input="classify_plain_event", params={"source_name": "web"})
        for effects in (2, None):
            view = await client.ask("peers", session, body, message_id="once")
            assert (view["effects"] and len(view["effects"])) == effects

    with_client(serving, story)
    with pytest.raises(Failed, match="NO_ANSWER: classify_plain_event was accepted"):
        effects_of(None, "classify_plain_event")
