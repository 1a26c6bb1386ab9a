"""Executes every run of a realm with nats-py alone: ``python driver.py URL [REALM]``.

The URL has the credential of a driver: ``rookery auth url driver`` prints it.

It takes the part of a language model that calls a tool, fails once, and has its output checked.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from urllib.parse import urlsplit

import nats

__all__ = ["STEPS", "execute_runs"]

RUN_BEGINS = ("run_prepared", "queued_run_drained")
START = {
    "primitive_kind_in": "ConversationTurn",
    "shape": "conversation",
    "vision": False,
    "image_results": False,
    "max_retries": 1,
}
FAILURE = {"failure_kind": "rate_limited", "error": "slow down", "selected_delay_ms": 10}
OPERATION = "01890000-0000-7000-8000-000000000001"
STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("primitive_applied", {}),
    ("llm_returned_tool_calls", {"tool_count": 1}),
    ("register_pending_ops", {"op_refs": [OPERATION], "barrier_ids": [OPERATION]}),
    ("ops_barrier_satisfied", {"operation_ids": [OPERATION]}),
    ("tool_calls_resolved", {}),
    ("boundary_continue", {}),
    ("recoverable_failure", {**FAILURE, "retry_attempt": 1, "max_retries": 3}),
    ("retry_requested", {"retry_attempt": 1}),
    ("llm_returned_terminal", {}),
    ("enter_extraction", {"max_retries": 1}),
    ("extraction_start", {}),
    ("llm_returned_terminal", {}),
    ("enter_extraction", {"max_retries": 1}),
    ("extraction_validation_failed", {"error": "not JSON"}),
    ("llm_returned_terminal", {}),
    ("enter_extraction", {"max_retries": 1}),
    ("extraction_validation_passed", {}),
)
"""The steps between the start of a turn and the end of its run."""


async def execute_runs(url: str, realm: str = "default", runs: int = 0) -> None:
    """Execute runs as they are prepared; return after so many, if ``runs`` is not 0."""
    client = await nats.connect(url, inbox_prefix=f"_INBOX.{urlsplit(url).username}")
    try:
        prepared = await client.subscribe(f"rookery.{realm}.ev.session.*")
        await client.flush()
        _say("waiting for runs")
        executed, code = 0, {}
        async for message in prepared.messages:
            for fact in json.loads(message.data):
                _, kind, _ = fact["type"].split(".")
                if kind == "input_accepted":
                    code[fact["run"]] = fact["request"]["code"]
                elif kind in RUN_BEGINS and fact["run"] in code:
                    await _execute(client, realm, fact["session"], fact["run"], code[fact["run"]])
                    executed += 1
            if runs and executed >= runs:
                return
    finally:
        await client.close()


async def _execute(client: Any, realm: str, session: str, run: str, code: str) -> None:
    """Take a run through its turn."""
    result = {"status": "ok", "result": f"you said {code}", "stdout": "three attempts\n"}
    for on, params in (
        ("start_conversation_run", {"run_id": run, **START}),
        *STEPS,
        ("run_completed", {"run_id": run, "result": result}),
    ):
        body = json.dumps({"input": on, "params": params}).encode()
        reply = await client.request(f"rookery.{realm}.api.turns.{session}", body, timeout=10)
        answer = json.loads(reply.data)
        _say(f"{session} {on}: {answer.get('turn_phase', answer)}")
        if "error" in answer:
            return  # A client cancelled the run, or the node refused a step.


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(execute_runs(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "default"))
