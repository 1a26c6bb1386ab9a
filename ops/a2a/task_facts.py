"""Tasks, folded from the facts of the session that executes them. Pure.

A task is a request to the session: it begins with the envelope and ends with the response. All its
facts are under the session's key, so the journal has them in one order, and the position of a fact
is the cursor of the change that follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from rookery.schemas.codec import fact_tag
from rookery.schemas.facts import peer, session, turn
from rookery.schemas.peers.gateways import PushTarget
from rookery.schemas.peers.items import INPUT_REQUIRED

__all__ = [
    "CLIENT_PREFIX",
    "A2aState",
    "Cursor",
    "TaskChange",
    "TaskRecord",
    "TasksOfSession",
    "read_cursor",
]

CLIENT_PREFIX: Final = "a2a-"
"""Begins the name of the session in whose name a client of the gateway sends."""
CANCELLED: Final = "CANCELLED"
_AUTHORIZED_BY: Final = {
    "WAITING_FOR_APPROVAL": "waits for an approver: rookery approvals list --session {session}",
    "LEASE_REAUTH_REQUIRED": "waits for a login: rookery leases list",
    "RECOVERY_REQUIRED": "waits for an operator, who says what a call did: rookery runs show {run}",
}
"""Codes of runs that wait for a person, and what they wait for."""

Fields = Mapping[str, Any]


class A2aState(StrEnum):
    """The states of the protocol, by their names there."""

    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    REJECTED = "TASK_STATE_REJECTED"

    @property
    def is_end(self) -> bool:
        return self in _ENDS

    @property
    def is_interrupted(self) -> bool:
        """Whether the task waits for its client, or for a person that authorizes it."""
        return self in (A2aState.INPUT_REQUIRED, A2aState.AUTH_REQUIRED)


_ENDS: Final = frozenset(
    (A2aState.COMPLETED, A2aState.FAILED, A2aState.CANCELED, A2aState.REJECTED)
)


class Cursor(NamedTuple):
    """Where a change of a task is in the journal: message, fact in it, part of the change."""

    sequence: int
    fact: int
    part: int = 0

    def __str__(self) -> str:
        return f"{self.sequence}.{self.fact}.{self.part}"


def read_cursor(text: str) -> Cursor | None:
    """The cursor that a client has sent back; ``None`` if it is none."""
    words = text.split(".")
    if len(words) != 3 or not all(word.isascii() and word.isdecimal() for word in words):
        return None
    if any(len(word) > 18 for word in words):
        return None
    return Cursor(*map(int, words))


class TaskChange(NamedTuple):
    """One change of a task: a state, content of its client, or content of the agent."""

    cursor: Cursor
    at_ms: int
    state: A2aState | None = None
    content: Any = None
    """Of a state: what its message says. Of an artifact: its value."""
    is_artifact: bool = False
    message: Mapping[str, Any] | None = None
    """Of the client, as it has sent it."""
    is_direct: bool = False
    """The agent responds with a message, and not with a task."""


class TaskRecord:
    """One task."""

    def __init__(self, task_id: str, client: str, context_id: str, message_id: str) -> None:
        self.id, self.client = task_id, client
        self.context_id, self.message_id = context_id, message_id
        self.changes: list[TaskChange] | None = []
        """``None`` of an ended task whose changes are read again when they are needed."""
        self.state = A2aState.SUBMITTED
        self.run_id = ""
        """Of the run that handles it now, or did last."""
        self.targets: dict[str, PushTarget] = {}
        """Where its client is notified, by id."""
        self.item_ids: list[str] = []
        """Of further messages of the client."""
        self.first, self.last = 0, Cursor(0, 0)
        """Sequence of the first change, and the cursor of the last."""
        self.updated_ms = 0

    @property
    def session(self) -> str:
        """In whose name its client has sent it."""
        return f"{CLIENT_PREFIX}{self.client}"

    def add(self, change: TaskChange) -> None:
        if self.changes is not None:
            self.changes.append(change)
        self.first = self.first or change.cursor.sequence
        self.last = change.cursor
        if change.state is not None:
            self.state, self.updated_ms = change.state, change.at_ms


class TasksOfSession:
    """The tasks of one session, by its facts in the order of the journal."""

    def __init__(self) -> None:
        self.by_id: dict[str, TaskRecord] = {}
        self._by_message: dict[tuple[str, str], TaskRecord] = {}
        self._of_run: dict[str, TaskRecord] = {}
        self._of_item: dict[str, TaskRecord] = {}
        """By further messages, which a run may handle."""
        self._of_receiver: dict[str, TaskRecord] = {}
        self.notified: dict[str, TaskRecord] = {}
        """Tasks that have targets of push notifications."""
        self.responder: Fields | None = None
        """The program that executes tasks, as it was set last."""

    def open_tasks(self) -> Iterator[TaskRecord]:
        return (one for one in self.by_id.values() if not one.state.is_end)

    def find_message(self, client: str, message_id: str) -> TaskRecord | None:
        """The task that a message of this client has begun: the first, if there are several."""
        return self._by_message.get((client, message_id))

    def drop(self, record: TaskRecord) -> None:
        """Its facts will come again."""
        del self.by_id[record.id]
        begun = record.client, record.message_id
        if self._by_message.get(begun) is record:
            del self._by_message[begun]
        self.notified.pop(record.id, None)

    def fold(self, fact: Fields) -> tuple[TaskRecord, list[TaskChange]] | None:
        """The task that a fact changes, and how."""
        read = _READERS.get(str(fact.get("type", "")))
        found = None if read is None else read(self, fact)
        if found is None:
            return None
        record, changes = found
        for change in changes:
            record.add(change)
        if record.state.is_end:
            self._of_run.pop(record.run_id, None)
            for message_id in record.item_ids:
                self._of_item.pop(message_id, None)
        return record, changes

    def _on_responder(self, fact: Fields) -> None:
        self.responder = fact["responder"]

    def _on_target(self, fact: Fields) -> None:
        if (record := self.by_id.get(str(fact["corr_id"]))) is None:
            return
        self.notified[record.id] = record
        if "target" in fact:
            record.targets[fact["target_id"]] = msgspec.convert(fact["target"], PushTarget)
        else:
            record.targets.pop(fact["target_id"], None)

    # --- what each fact says ----------------------------------------------------------------------

    def _open(self, task_id: str) -> TaskRecord | None:
        record = self.by_id.get(task_id)
        return None if record is None or record.state.is_end else record

    def _on_envelope(self, fact: Fields) -> _Found:
        arrival = fact.get("arrival")
        if not isinstance(arrival, dict):
            return None
        envelope = msgspec.json.decode(arrival["text"])
        content = envelope.get("params") or envelope.get("body")
        message = content.get("message") if isinstance(content, dict) else None
        sender = str(arrival["sender"]).partition("@")[0]
        if not isinstance(message, dict) or not sender.startswith(CLIENT_PREFIX):
            return None
        if envelope["kind"] == "request" and envelope["id"] not in self.by_id:
            return self._begin(fact, envelope, sender.removeprefix(CLIENT_PREFIX), message)
        record = self._open(str(envelope.get("in_reply_to", "")))
        if envelope["kind"] != "message" or record is None or record.session != sender:
            return None
        self._of_item[envelope["id"]] = record
        record.item_ids.append(envelope["id"])
        return record, [_change(fact, message=message)]

    def _begin(
        self, fact: Fields, envelope: Fields, client: str, message: Fields
    ) -> tuple[TaskRecord, list[TaskChange]]:
        task_id = str(envelope["id"])
        context_id = str(message.get("contextId") or envelope.get("thread") or task_id)
        record = TaskRecord(task_id, client, context_id, str(message.get("messageId", "")))
        self.by_id[task_id] = record
        self._by_message.setdefault((client, record.message_id), record)
        return record, [_change(fact, state=A2aState.SUBMITTED, message=message)]

    def _on_declined(self, fact: Fields) -> _Found:
        if (record := self._open(str(fact["corr_id"]))) is None:
            return None
        error = _envelope_of(fact).get("error", {})
        return record, [_change(fact, state=A2aState.REJECTED, content=_text_of(error))]

    def _on_assigned(self, fact: Fields) -> _Found:
        if operation_id := fact.get("operation_id"):
            return self._on_received(fact, operation_id)
        if (record := self._handled(str(fact["item_id"]))) is None:
            return None
        return record, [_change(fact, state=A2aState.WORKING)]

    def _handled(self, item_id: str) -> TaskRecord | None:
        """The open task that the run of an item belongs to."""
        if (record := self._of_item.get(item_id)) is not None:
            return None if record.state.is_end else record
        return self._open(item_id)

    def _on_input(self, fact: Fields) -> None:
        if (record := self._handled(str(fact.get("item_id", "")))) is not None:
            record.run_id = str(fact["run"])
            self._of_run[record.run_id] = record

    def _on_waiting(self, fact: Fields) -> _Found:
        """A program waits for a further message of the client."""
        pattern = fact["pattern"]
        if pattern.get("kind") not in (None, "message"):
            return None
        record = self._open(str(pattern.get("in_reply_to", "")))
        if record is None:
            return None
        self._of_receiver[fact["operation_id"]] = record
        return record, [_change(fact, state=A2aState.INPUT_REQUIRED)]

    def _on_received(self, fact: Fields, operation_id: str = "") -> _Found:
        record = self._of_receiver.pop(operation_id or fact["operation_id"], None)
        if record is None or record.state.is_end:
            return None
        return record, [_change(fact, state=A2aState.WORKING)]

    def _on_progress(self, fact: Fields) -> _Found:
        if (record := self._open(str(fact["corr_id"]))) is None:
            return None
        envelope = _envelope_of(fact)
        content = envelope.get("result")
        if isinstance(content, dict) and list(content) == [INPUT_REQUIRED]:
            question = content[INPUT_REQUIRED]
            return record, [_change(fact, state=A2aState.INPUT_REQUIRED, content=question)]
        if envelope.get("phase") == "partial_result":
            return record, [_change(fact, content=content, is_artifact=True)]
        return record, [_change(fact, state=A2aState.WORKING, content=content)]

    def _on_replied(self, fact: Fields) -> _Found:
        if (record := self._open(str(fact["corr_id"]))) is None or "sent" not in fact:
            return None
        envelope = _envelope_of(fact)
        if error := envelope.get("error"):
            is_cancelled = error.get("code") == CANCELLED
            state = A2aState.CANCELED if is_cancelled else A2aState.FAILED
            return record, [_change(fact, state=state, content=_text_of(error))]
        return record, list(_completion(fact, envelope.get("result")))

    def _on_parked(self, fact: Fields) -> _Found:
        record = self._of_run.get(str(fact.get("run")))
        reason = _AUTHORIZED_BY.get(str(fact["code"]))
        if record is None or reason is None:
            return None
        text = reason.format(session=fact["session"], run=fact["run"])
        return record, [_change(fact, state=A2aState.AUTH_REQUIRED, content=text)]

    def _on_unparked(self, fact: Fields) -> _Found:
        record = self._of_run.get(str(fact.get("run")))
        if record is None or record.state is not A2aState.AUTH_REQUIRED:
            return None
        return record, [_change(fact, state=A2aState.WORKING)]


_Found = tuple[TaskRecord, list[TaskChange]] | None

_READERS: Final[Mapping[str, Any]] = {
    fact_tag(peer.EnvelopeClassified): TasksOfSession._on_envelope,
    fact_tag(peer.RequestDeclined): TasksOfSession._on_declined,
    fact_tag(peer.ItemAssigned): TasksOfSession._on_assigned,
    fact_tag(peer.ReceiverWaiting): TasksOfSession._on_waiting,
    fact_tag(peer.ReceiverLeft): TasksOfSession._on_received,
    fact_tag(peer.ProgressSent): TasksOfSession._on_progress,
    fact_tag(peer.ResponseReplied): TasksOfSession._on_replied,
    fact_tag(peer.PushTargetSet): TasksOfSession._on_target,
    fact_tag(peer.PushTargetRemoved): TasksOfSession._on_target,
    fact_tag(peer.ResponderSet): TasksOfSession._on_responder,
    fact_tag(session.InputAccepted): TasksOfSession._on_input,
    fact_tag(turn.Parked): TasksOfSession._on_parked,
    fact_tag(turn.Unparked): TasksOfSession._on_unparked,
}


def _change(fact: Fields, part: int = 0, **fields: Any) -> TaskChange:
    sequence, _, number = str(fact["position"]).partition(".")
    return TaskChange(Cursor(int(sequence), int(number), part), fact["at_ms"], **fields)


def _completion(fact: Fields, result: Any) -> Iterator[TaskChange]:
    """A result is an artifact, and then the end; ``{"message": ...}`` is a message instead."""
    if isinstance(result, dict) and list(result) == ["message"]:
        content = result["message"]
        yield _change(fact, state=A2aState.COMPLETED, content=content, is_direct=True)
        return
    if result is not None:
        yield _change(fact, content=result, is_artifact=True)
    yield _change(fact, 1, state=A2aState.COMPLETED)


def _envelope_of(fact: Fields) -> dict[str, Any]:
    """What the session has sent, as the fact holds it."""
    envelope: dict[str, Any] = msgspec.json.decode(fact["sent"]["text"])
    return envelope


def _text_of(error: Fields) -> str:
    code, message = str(error.get("code", "")), str(error.get("message", ""))
    return f"{code}: {message}" if message else code
