"""The tools of the surface ``peers``: a program sends to the peers of its session, and waits.

``peers()`` reads the roster. The calls of all others are awaited: the facts of the session's
exchanges begin and end them, so that each is sent once and answered once, and a program may wait
for days while its run is parked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, Final, Protocol

from rookery.actors.tools.authoring.decorator import tool
from rookery.actors.tools.authoring.registry import ToolCallContext, ToolRegistry
from rookery.actors.tools.catalogue.catalogue import CatalogueTool
from rookery.schemas.calls import WAITING_FOR_PEER, CallArguments, Capability
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.policies import CapabilityPermission
from rookery.schemas.surfaces import PEERS

__all__ = [
    "PeerDirectory",
    "bound_peer_call",
    "peer_address",
    "peer_tools",
    "peer_wait",
    "peers_registry",
]

TIMEOUT_S: Final = 86_400
TIMEOUT_S_MAX: Final = 365 * 86_400

_DELIVERY: Final = CapabilityPermission.OUTPUT_DELIVERY
_ADDRESS: Final = {
    "type": "string",
    "pattern": "^[A-Za-z0-9_-]{1,64}(@[A-Za-z0-9_-]{1,32})?$",
    "description": "SESSION@ALIAS; a session of this realm needs no alias",
}
_UUID: Final = {"type": "string", "minLength": 36, "maxLength": 36}
_INTENT: Final = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}
_OPTIONAL_UUID: Final = {"anyOf": [_UUID, {"type": "null"}], "default": None}
_OPTIONAL_TEXT: Final = {"type": ["string", "null"], "maxLength": 128, "default": None}


def _capability(
    name: str,
    description: str,
    properties: dict[str, Any],
    *,
    required: tuple[str, ...] = (),
    side_effect: SideEffect = SideEffect.EXTERNAL_SYSTEM,
    output: Any = None,
) -> Capability:
    return Capability(
        name=name,
        description=description,
        input_schema={
            "type": "object",
            "properties": properties,
            "required": list(required),
            "additionalProperties": False,
        },
        output_schema={} if output is None else output,
        side_effect=side_effect,
        permissions=() if side_effect is SideEffect.READ else (_DELIVERY,),
    )


SEND_REQUEST: Final = _capability(
    "send_request",
    "Ask a peer and wait for the result of its response, while the run is parked. With stream, "
    "the id of the request at once: receive(in_reply_to=id), within 30 s and then again and again, "
    "has its responses.\n\n"
    "Raises PEER_FAILED, PEER_DECLINED, PEER_TIMED_OUT, PEER_SEND_FAILED, PEER_UNKNOWN or "
    "PEER_REVOKED.",
    {
        "to": _ADDRESS,
        "intent": _INTENT,
        "params": {"default": None},
        "timeout_s": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": TIMEOUT_S_MAX,
            "default": TIMEOUT_S,
        },
        "stream": {"type": "boolean", "default": False},
    },
    required=("to", "intent"),
)
SEND_MESSAGE: Final = _capability(
    "send_message",
    "Send a peer a message; its id. It is on record then, and is delivered within a week.",
    {
        "to": _ADDRESS,
        "body": {},
        "thread": _OPTIONAL_UUID,
        "in_reply_to": _OPTIONAL_UUID,
    },
    required=("to", "body"),
    output={"type": "string"},
)
SEND_RESPONSE: Final = _capability(
    "send_response",
    "Respond to a request of a peer: with a phase at any time, with an end once.",
    {
        "peer_id": _UUID,
        "in_reply_to": _UUID,
        "status": {"enum": ["accepted", "completed", "failed"], "default": "completed"},
        "result": {"default": None},
        "phase": {
            "enum": ["accepted", "in_progress", "partial_result", None],
            "default": None,
            "description": "of an accepted request",
        },
        "display_name": _OPTIONAL_TEXT,
    },
    required=("peer_id", "in_reply_to"),
    output={"type": "null"},
)
RECEIVE: Final = _capability(
    "receive",
    "Wait for the next message or request of a peer to this session; null at the time-out.",
    {
        "timeout_s": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": TIMEOUT_S_MAX,
            "default": None,
        },
        "from_": {**_OPTIONAL_TEXT, "description": "the address of its sender"},
        "intent": _OPTIONAL_TEXT,
        "kind": {"enum": ["message", "request", "response", "ack", "lifecycle", "event", None]},
        "in_reply_to": _OPTIONAL_UUID,
    },
    side_effect=SideEffect.READ,
    output={"type": ["object", "null"]},
)
_AWAITED: Final = {
    one.name: CatalogueTool.of(PEERS, one, awaited=True)._replace(waits_for=WAITING_FOR_PEER)
    for one in (SEND_REQUEST, SEND_MESSAGE, SEND_RESPONSE, RECEIVE)
}


class PeerDirectory(Protocol):
    """The peers that a session may address, as the node's roster says now."""

    def addresses(self, session: str) -> list[dict[str, Any]]: ...


def peers_registry(directory: PeerDirectory) -> ToolRegistry:
    """The tool that reads the roster, as a function for the bus's loop."""

    def peers(ctx: ToolCallContext) -> list[dict[str, Any]]:
        """The realms and clients that this session may send to."""
        return directory.addresses(ctx.session_id)

    declared: Callable[..., Any] = tool(side_effect=SideEffect.READ, quick=True, permissions=())(
        peers
    )
    return ToolRegistry.of(declared)


def peer_tools(registry: ToolRegistry) -> tuple[CatalogueTool, ...]:
    """All tools of the surface; ``registry``: see ``peers_registry``."""
    read = (CatalogueTool.of(PEERS, one.capability, awaited=True) for one in registry)
    return (*read, *_AWAITED.values())


# --- awaited calls --------------------------------------------------------------------------------


def bound_peer_call(name: str, arguments: CallArguments) -> dict[str, Any]:
    """The checked arguments of an awaited call, by name; none that is null."""
    bound = _AWAITED[name].checks.check_arguments(arguments.args, arguments.kwargs)
    return {one: value for one, value in bound.items() if value is not None or one == "body"}


def peer_address(name: str, arguments: CallArguments) -> str:
    """To whom a valid call sends; empty if it answers a peer, or sends nothing."""
    return str(bound_peer_call(name, arguments).get("to", ""))


def peer_wait(name: str, bound: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """What the fact of the wait says: until when, and for whom."""
    default = TIMEOUT_S if name == SEND_REQUEST.name else None
    timeout_s = bound.get("timeout_s", default)
    shown = {"peer": bound.get("to") or bound.get("from_"), "intent": bound.get("intent")}
    found = {field: value for field, value in shown.items() if value}
    if timeout_s is not None:
        found["until_ms"] = now_ms + ceil(timeout_s * 1_000)
    return found
