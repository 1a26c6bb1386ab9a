"""A guard by Cedar policies, ``payments.cedar`` or ``$CEDAR_POLICIES``, evaluated in its process.

``pip install cedarpy``, then ``rookery hooks serve rookery.ops.examples.hooks.cedar:guards``. Its
registration: ``id = "ask-cedar"``, ``rights = ["deny"]``, ``privacy =
"content_capture_allowed"``, ``executor = { kind = "nats" }``. A call that a policy cannot decide
on, such as one with a fraction among its arguments, fails the hook; its failure policy decides.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cedarpy import Decision, PolicySet, is_authorized
from msgspec import UNSET

from rookery.actors.hooks import deny, hook
from rookery.actors.tools import ToolRegistry
from rookery.schemas.seed.hook_invocation import HookInput, HookResponse

__all__ = ["ask_cedar", "guards"]

FILE = os.environ.get("CEDAR_POLICIES") or Path(__file__).with_name("payments.cedar")
POLICIES = PolicySet.from_str(Path(FILE).read_text(encoding="utf-8"))


@hook("before_tool_call", rights=["deny"], mode="off")
def ask_cedar(call: HookInput) -> HookResponse | None:
    """Refuse the call unless a policy permits it and none forbids it."""
    question = {
        "principal": {"type": "Run", "id": call.run_id.as_str()},
        "action": {"type": "Action", "id": "call"},
        "resource": {
            "type": "Tool",
            "id": "" if call.destination is None else call.destination.id.as_str(),
        },
        "context": {} if call.view.content is UNSET else {"args": without_nulls(call.view.content)},
    }
    answer = is_authorized(question, POLICIES, [])
    if answer.diagnostics.errors:  # Cedar skips a policy that fails, also one that forbids.
        raise ValueError("; ".join(answer.diagnostics.errors))
    if answer.decision is Decision.Allow:
        return None
    forbidding = ", ".join(answer.diagnostics.reasons)
    return deny("cedar", f"forbidden by {forbidding}" if forbidding else "no policy permits it")


def without_nulls(value: Any) -> Any:
    """The value in Cedar's terms, which have no null: ``context.args has name`` asks for one."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [without_nulls(one) for one in value if one is not None]
    return value


guards = ToolRegistry.of(ask_cedar)
