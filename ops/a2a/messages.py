"""Tasks and their changes as the protocol's messages.

What a program returns is any JSON. It becomes parts by its form: a text, ``{"parts": [...]}`` with
parts of the protocol, or else data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.struct_pb2 import Value

from rookery.ops.a2a.task_facts import Cursor, TaskChange, TaskRecord

__all__ = [
    "CURSOR_EXTENSION",
    "agent_message",
    "cursor_of",
    "message_fields",
    "task_of",
    "to_event",
]

CURSOR_EXTENSION: Final = "https://rookery.dev/a2a/cursor/v1"
"""In the metadata of tasks and events: the position in the journal, from which a client resumes."""
_OWN: Final = frozenset(("artifactId", "name", "description", "metadata", "append", "lastChunk"))
"""What a program may say of an artifact beside its parts."""


def message_fields(message: Message) -> dict[str, Any]:
    """A message of a client as it is recorded."""
    fields: dict[str, Any] = MessageToDict(message)
    return fields


def task_of(
    record: TaskRecord, changes: Sequence[TaskChange], *, until: Cursor | None = None
) -> Task:
    """The task after its changes, or after those up to a cursor."""
    task = Task(id=record.id, context_id=record.context_id)
    for change in changes:
        if until is not None and change.cursor > until:
            break
        if change.message is not None:
            task.history.append(_client_message(record, change))
        if change.is_artifact:
            _add_artifact(task, to_event(record, change))
        if change.state is not None:
            status = _status(record, change)
            task.status.CopyFrom(status)
            if status.HasField("message"):
                task.history.append(status.message)
        _set_cursor(task, change.cursor)
    return task


def to_event(
    record: TaskRecord, change: TaskChange
) -> TaskStatusUpdateEvent | TaskArtifactUpdateEvent:
    """A change of a state, or an artifact, as an event."""
    event: TaskStatusUpdateEvent | TaskArtifactUpdateEvent
    if change.is_artifact:
        fields = change.content if isinstance(change.content, dict) else {}
        event = TaskArtifactUpdateEvent(
            task_id=record.id,
            context_id=record.context_id,
            artifact=_artifact(change),
            append=fields.get("append") is True,
            last_chunk=fields.get("lastChunk") is True,
        )
    else:
        event = TaskStatusUpdateEvent(
            task_id=record.id, context_id=record.context_id, status=_status(record, change)
        )
    _set_cursor(event, change.cursor)
    return event


def agent_message(record: TaskRecord, change: TaskChange, *, of_task: bool = True) -> Message:
    """What the agent says in a change; if not ``of_task``, it is its whole response."""
    message = Message(
        message_id=f"{record.id}.{change.cursor}",
        role=Role.ROLE_AGENT,
        task_id=record.id if of_task else "",
        context_id=record.context_id,
        parts=_parts(change.content),
    )
    _set_cursor(message, change.cursor)
    return message


def cursor_of(fields: Any) -> str:
    """The cursor of an event as it is sent; empty if it has none."""
    content = fields.get("result", fields) if isinstance(fields, dict) else None
    if not isinstance(content, dict):
        return ""
    for event in (content, *content.values()):  # The older protocol has the event itself there.
        metadata = event.get("metadata") if isinstance(event, dict) else None
        found = metadata.get(CURSOR_EXTENSION) if isinstance(metadata, dict) else None
        if isinstance(found, dict):
            return str(found.get("cursor", ""))
    return ""


def _set_cursor(message: Any, cursor: Cursor) -> None:
    place = {"cursor": str(cursor), "seq": cursor.sequence}
    message.metadata.update({CURSOR_EXTENSION: place})


def _status(record: TaskRecord, change: TaskChange) -> TaskStatus:
    assert change.state is not None
    status = TaskStatus(state=TaskState.Value(change.state.value))
    status.timestamp.FromMilliseconds(change.at_ms)
    if change.content is not None:
        status.message.CopyFrom(agent_message(record, change))
    return status


def _client_message(record: TaskRecord, change: TaskChange) -> Message:
    message = Message()
    ParseDict(dict(change.message or {}), message, ignore_unknown_fields=True)
    message.task_id, message.context_id = record.id, record.context_id
    return message


# --- content --------------------------------------------------------------------------------------


def _artifact(change: TaskChange) -> Artifact:
    content = change.content
    own = content if isinstance(content, dict) and "parts" in content else {}
    fields = {name: own[name] for name in ("name", "description", "metadata") if name in own}
    artifact = Artifact(
        artifact_id=str(own.get("artifactId") or change.cursor), parts=_parts(content)
    )
    try:
        ParseDict(fields, artifact)
    except ParseError:
        artifact.ClearField("metadata")
    return artifact


def _parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [Part(text=content)]
    if isinstance(content, dict) and "parts" in content and set(content) <= {"parts"} | _OWN:
        parts = content["parts"]
        try:
            if isinstance(parts, list) and parts:
                return [_part(one) for one in parts]
        except ParseError:
            """It only looks like parts."""
    return [Part(data=ParseDict(content, Value()))]


def _part(fields: Any) -> Part:
    if isinstance(fields, str):
        return Part(text=fields)
    part: Part = ParseDict(fields, Part())
    if part.WhichOneof("content") is None:
        raise ParseError("a part without content")
    return part


def _add_artifact(task: Task, event: Any) -> None:
    """An artifact of a known id replaces it, or continues it."""
    artifact = event.artifact
    known = _find(task.artifacts, artifact.artifact_id)
    if known is None:
        task.artifacts.append(artifact)
    elif event.append:
        known.parts.extend(artifact.parts)
    else:
        known.CopyFrom(artifact)


def _find(artifacts: Iterable[Artifact], artifact_id: str) -> Artifact | None:
    return next((one for one in artifacts if one.artifact_id == artifact_id), None)
