"""Any NATS client can send inputs to the machines of a session."""

from __future__ import annotations

from tests.execution.conftest import Serving
from tests.execution.session_client import Visit
from tests.stock_client import Answer, Stock, until

OP = "01890000-0000-7000-8000-000000000001"


def test_a_stock_client_drives_a_run_through_its_turn(serving: Serving):
    async def scenario(client: Stock) -> None:
        visit = Visit(client, "driven")

        async def step(on: str, **params: object) -> str:
            body = {"input": on, "params": params}
            answer = await client.ask("turns", visit.session, body)
            assert not answer.code, answer
            return str(answer.body["turn_phase"])

        await visit.run("given")
        current = await until(visit.current, "it runs")
        start = {"primitive_kind_in": "ConversationTurn", "shape": "conversation"}
        media = {"vision": False, "image_results": False, "max_retries": 0}
        await step("start_conversation_run", run_id=current["run"], **start, **media)
        await step("primitive_applied")
        await step("llm_returned_tool_calls", tool_count=1)
        await step("register_pending_ops", op_refs=[OP], barrier_ids=[OP])
        await step("ops_barrier_satisfied", operation_ids=[OP])
        await step("tool_calls_resolved")
        await step("boundary_continue")
        await step("llm_returned_terminal")
        assert await step("boundary_complete") == "Completed"
        await visit.commit()
        assert (await visit.answer("given")).body["state"] == "committed"
        refused = await client.ask("turns", visit.session, {"input": "primitive_applied"})
        assert (refused.code, refused.error["kind"]) == ("GUARD_REJECTED", "GuardRejected")
        assert refused.error["context"] == "TurnStateHandle::primitive_applied"

    serving.visit(scenario)


def test_every_decider_gets_its_verb_by_request_and_by_inbox(serving: Serving):
    async def scenario(client: Stock) -> None:
        visit = Visit(client, "asked")
        for on in ("Initialize", "RegisterSession", "EnsureSessionWithExecutor"):
            await visit.handle(on)

        async def ask(door: str, verb: str, key: str, on: str, **params: object) -> Answer:
            body, name = {"input": on, "params": params}, f"{door}-{verb}"
            headers = {"Nats_Msg_Id": f"{name}-{key}", "reply": client.reply(name)}

            async def send() -> None:
                await client.publish(door, verb, key, body, **headers)

            return await client.insist(send, lambda: client.answer_of(name))

        for door in ("api", "cmd"):
            told = await ask(door, "surfaces", visit.session, "register", surface_id=door)
            assert door in told.body["known_surfaces"]
            lease = f"dev%2Eeu:git:{door}"
            told = await ask(door, "leases", lease, "acquire_lease", expires_at_ts=9)
            assert (told.body["phase"], told.body["generation"]) == ("Valid", 1)
            told = await ask(door, "peers", visit.session, "request_received", corr_id=door)
            assert told.body["state"] == "Received"
            told = await ask(
                door, "approvals", visit.session, "decide_approval", approval_id=door,
                decision="Deny",
            )  # fmt: skip
            assert told.body["effects"][0]["fields"]["reason"] == "NotFound"
            told = await ask(door, "turns", visit.session, "set_baseline", model=door,
                             realtime_capable=False)  # fmt: skip
            assert told.body["baseline_model"] == door

    serving.visit(scenario)


def test_a_destroyed_session_refuses_its_machines(serving: Serving):
    async def scenario(client: Stock) -> None:
        visit = Visit(client, "destroyed-machines")
        for on in ("Initialize", "RegisterSession", "EnsureSessionWithExecutor"):
            await visit.handle(on)
        connecting = {"input": "apply_connect_pending", "params": {"server_id": "m"}}
        told = await client.ask("surfaces", visit.session, connecting)
        assert told.body["pending_server_ids"] == ["m"]
        await visit.handle("Destroy")
        for verb, body in (
            ("surfaces", connecting),
            ("turns", {"input": "start_immediate_append", "params": {"run_id": OP}}),
            ("peers", {"input": "context_advanced", "params": {"updated_at_ms": 1}}),
        ):
            refused = await client.ask(verb, visit.session, body)
            assert refused.code == "GUARD_REJECTED", (verb, refused)
            assert "from phase Destroyed" in refused.error["reason"]

    serving.visit(scenario)
