"""Envelopes as messages of A2A 1.0, and its tasks and messages as responses of a peer. Pure.

The id of a message is that of its envelope, so an agent that knows it gets it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from rookery.actors.peers.terminal import PeerResponseTerminalSource
from rookery.schemas.errors import Refused
from rookery.schemas.machines.peer import PeerResponseProgressProjectionPhase, ResponseStatus
from rookery.schemas.peers.envelope import Envelope, EnvelopeKind, PeerFailure
from rookery.schemas.peers.exchanges import AgentTask, PeerResponse
from rookery.schemas.peers.items import INPUT_REQUIRED

__all__ = [
    "RemoteMessage",
    "RemoteTask",
    "failed_response",
    "message_of",
    "read_answer",
    "read_task",
    "response_of",
    "response_of_message",
]

AUTH_REQUIRED: Final = "auth_required"
_TEXT_MAX: Final = 2_000
_STATE: Final = "TASK_STATE_"
_PHASES: Final = PeerResponseProgressProjectionPhase
_FAILURES: Final = {
    "FAILED": ("FAILED", "the agent's task failed"),
    "CANCELED": ("CANCELLED", "the agent's task was cancelled"),
    "REJECTED": ("PEER_REJECTED", "the agent rejected the message"),
}
"""The code of each end without a result, and what is said if the agent says nothing."""
_QUESTIONS: Final = {"INPUT_REQUIRED": INPUT_REQUIRED, "AUTH_REQUIRED": AUTH_REQUIRED}

Part = dict[str, Any]


class RemoteMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message of an agent, or of ours in its history."""

    message_id: str = ""
    parts: tuple[Part, ...] = ()


class _Artifact(msgspec.Struct, frozen=True, rename="camel"):
    artifact_id: str = ""
    name: str = ""
    parts: tuple[Part, ...] = ()


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    state: str = ""
    message: RemoteMessage | None = None


class RemoteTask(msgspec.Struct, frozen=True, rename="camel"):
    """A task as its agent shows it."""

    id: str
    context_id: str = ""
    status: _Status = _Status()
    artifacts: tuple[_Artifact, ...] = ()
    history: tuple[RemoteMessage, ...] = ()

    @property
    def state(self) -> str:
        """Without its prefix."""
        return self.status.state.removeprefix(_STATE)


def read_task(result: Any, route: str, name: str) -> RemoteTask:
    """The task of an answer; ``Refused`` for anything else, and for one that is not named as the
    contract wants it. ``route``: the agent's address here; ``name``: as its card says."""
    try:
        task = msgspec.convert(result, RemoteTask)
    except msgspec.ValidationError as error:
        raise Refused("INVALID_ARGUMENT", f"the agent's answer is no task: {error}") from None
    PeerResponseTerminalSource.parse(task.id, route, name)
    return task


def read_answer(result: Any, route: str, name: str) -> RemoteTask | RemoteMessage:
    """The answer to a message."""
    found = result if isinstance(result, dict) else {}
    if "message" not in found:
        return read_task(found.get("task"), route, name)
    try:
        return msgspec.convert(found["message"], RemoteMessage)
    except msgspec.ValidationError as error:
        raise Refused("INVALID_ARGUMENT", f"the agent's answer is no message: {error}") from None


# --- what is sent ---------------------------------------------------------------------------------


def message_of(envelope: Envelope, task: AgentTask | None) -> dict[str, Any]:
    """The message that an envelope is. ``task``: the one that it continues."""
    is_request = envelope.kind is EnvelopeKind.REQUEST
    content = envelope.params if is_request else envelope.body
    message: dict[str, Any] = {
        "messageId": envelope.id,
        "role": "ROLE_USER",
        "parts": _parts(content, str(envelope.intent) if is_request else ""),
        "contextId": envelope.id if envelope.thread is UNSET else envelope.thread,
    }
    if is_request:
        message["metadata"] = {"skillId": envelope.intent}
    if task is not None:
        message |= {"taskId": task.task_id, "contextId": task.context_id or message["contextId"]}
    return message


def _parts(content: Any, intent: str) -> list[Part]:
    """A text, the parts that it is made of, or any other JSON; without one the intent says all."""
    if content is UNSET or content is None:
        return [{"text": intent}]
    if isinstance(content, str):
        return [{"text": content}]
    if isinstance(content, dict) and list(content) == ["parts"]:
        parts = content["parts"]
        if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
            return parts
    return [{"data": content}]


# --- what comes back ------------------------------------------------------------------------------


def response_of(task: RemoteTask) -> PeerResponse:
    """What the state of a task is for the request that it serves."""
    text = _text_of(task.status.message)
    if task.state == "COMPLETED":
        parts = [part for artifact in task.artifacts for part in artifact.parts]
        said = () if task.status.message is None else task.status.message.parts
        return PeerResponse(status=ResponseStatus.COMPLETED, result=_value_of(parts or said))
    if task.state in _FAILURES:
        code, default = _FAILURES[task.state]
        return failed_response(code, text or default)
    if task.state in _QUESTIONS:
        question = {_QUESTIONS[task.state]: _value_of(_said(task))}
        return _progress(_PHASES.IN_PROGRESS, question)
    if task.state == "SUBMITTED":
        return _progress(_PHASES.ACCEPTED, text or None)
    return _progress(_PHASES.IN_PROGRESS, text or None)


def response_of_message(message: RemoteMessage) -> PeerResponse:
    """An agent that answers at once has no task."""
    return PeerResponse(status=ResponseStatus.COMPLETED, result=_value_of(message.parts))


def failed_response(code: str, message: str) -> PeerResponse:
    error = PeerFailure(code=code[:64], message=message[:_TEXT_MAX])
    return PeerResponse(status=ResponseStatus.FAILED, error=error)


def _progress(phase: PeerResponseProgressProjectionPhase, result: Any) -> PeerResponse:
    found = UNSET if result is None else result
    return PeerResponse(status=ResponseStatus.ACCEPTED, phase=phase, result=found)


def _said(task: RemoteTask) -> Sequence[Part]:
    return () if task.status.message is None else task.status.message.parts


def _text_of(message: RemoteMessage | None) -> str:
    parts = () if message is None else message.parts
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _value_of(parts: Sequence[Part]) -> Any:
    """The reverse of ``_parts``: one text, one piece of data, or all parts."""
    if not parts:
        return None
    if len(parts) == 1 and isinstance(parts[0].get("text"), str):
        return parts[0]["text"]
    if len(parts) == 1 and "data" in parts[0]:
        return parts[0]["data"]
    return {"parts": list(parts)}
