"""A guard that asks an Open Policy Agent, in a process of its own.

``opa run --server policy.rego`` with ``package rookery`` and a rule ``deny`` that has the reasons,
then ``rookery hooks serve rookery.ops.examples.hooks.opa:guards``. Its registration: ``id =
"ask-opa"``, ``rights = ["deny"]``, ``privacy = "content_capture_allowed"``, ``executor = { kind =
"nats" }``. If the agent is away, the hook fails, and its failure policy decides.
"""

from __future__ import annotations

import json
import os
from urllib.request import Request, urlopen

from rookery.actors.hooks import deny, hook
from rookery.actors.tools import ToolRegistry
from rookery.schemas.seed.hook_invocation import HookInput, HookResponse

__all__ = ["ask_opa", "guards"]

AGENT = os.environ.get("OPA_URL", "http://127.0.0.1:8181")
PATIENCE_S = 0.2


@hook("before_tool_call", rights=["deny"], mode="off")
def ask_opa(call: HookInput) -> HookResponse | None:
    """Refuse the call if the policy has a reason to."""
    tool = "" if call.destination is None else call.destination.id.as_str()
    question = {"input": {"tool": tool, "run": call.run_id.as_str(), "args": call.view.content}}
    request = Request(  # noqa: S310 - the operator's own agent.
        f"{AGENT}/v1/data/rookery/deny",
        data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
        reasons = json.load(answer)["result"]
    return deny("opa", "; ".join(map(str, reasons))) if reasons else None


guards = ToolRegistry.of(ask_opa)
