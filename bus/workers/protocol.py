"""Jobs on the wire: how a worker in any language serves tools, and how large bodies travel.

A worker of surface S needs a NATS client and two subscriptions:

``rookery.<realm>.tool.S.<tool>``, queue group ``rookery``: a call. Body ``{"args": [...], "kwargs":
{...}}``. Headers: ``Rookery-Left-Ms`` (so long the answer is wanted, counted from arrival),
``Idempotency-Key`` and ``Rookery-Call`` (the same for every try of a call), ``Rookery-Attempt``,
``Rookery-Run``, ``Rookery-Session``, ``Rookery-Schema``, ``traceparent``. The answer goes to the
message's reply subject: ``{"value": ...}`` or ``{"error": {"code", "message"}}``. With the header
``Rookery-Outcome: not-begun`` it says that another worker may be asked (no room, or leaving), with
``Rookery-Outcome: unknown`` that nobody will know; the body then has an ``error`` that says why.

``rookery.<realm>.crew.S.*``, no queue group: ``.catalogue`` is answered with ``{"worker", "tools":
[{"capability": {...}, "awaited": false}]}``. A capability says ``"idempotent": false`` if a second
call under the same key would act again; else it may get one. Optional: ``.cancel`` (body ``{"jobs":
[reply subject]}``) names jobs nobody wants any more; ``.health`` (the same body, jobs somebody
waits for) is answered with ``{"worker", "draining", "running": [{"id": reply subject, ...}]}``,
after sending once more those answers to the named jobs that may have been lost.

Optional, for nodes that take over what another node began: a worker keeps the last attempt of each
call (``Rookery-Call``) and answers a lower one ``not-begun``, its error code ``CANCELLED``. To
``.health`` with ``{"calls": [{"call", "attempt"}]}`` it adds ``"calls": [{"call", "attempt",
"state", "id"}]`` and ``"remembers_ms"``, how far back it knows of every call. States: ``running``
(``id`` is the job's reply subject), ``ended`` (the kept answer comes before, as it was but with the
headers ``Rookery-Call`` and ``Rookery-Attempt``), ``unknown``, and ``not-begun``: from then on the
worker answers this attempt, and those below, like a lower one. A worker that leaves all this out is
one that does not know; what runs at it, or ran, has to be found out by people.

This was chosen over ``$SRV.INFO`` of NATS micro: its metadata is a map of strings, where schemas
would have to be strings in strings, and its health knows no single call.

A body above what the server takes in one message is in the realm's blob store (``blobs``), and the
header ``Rookery-Blob`` is its digest. Who sends what, and when, is ``crews``' and ``workbench``'s.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from rookery.bus.commands.headers import TRACEPARENT
from rookery.bus.nats import Connection, Message, Outgoing, header_value
from rookery.bus.ports import Blobs
from rookery.schemas.calls import ToolFault
from rookery.schemas.codec import encode_json
from rookery.schemas.worker_protocol import Job, JobAnswer

__all__ = [
    "CANCEL",
    "CANCELLED",
    "CATALOGUE",
    "HEALTH",
    "NOT_STARTED",
    "QUEUE",
    "UNKNOWN",
    "AttemptQuery",
    "JobNames",
    "LargeBodies",
    "decode_job",
    "decode_outcome",
    "encode_no_result",
    "is_answer_to",
    "job_headers",
    "repeat_answer",
]

QUEUE: Final = "rookery"
CATALOGUE, HEALTH, CANCEL = "catalogue", "health", "cancel"
NOT_STARTED, UNKNOWN = "not-begun", "unknown"
CANCELLED = "CANCELLED"
"""The code beside ``not-begun`` of an attempt that no other worker is to begin either."""

_OUTCOME, _BLOB = "Rookery-Outcome", "Rookery-Blob"
_KEY, _CALL, _ATTEMPT = "Idempotency-Key", "Rookery-Call", "Rookery-Attempt"
_RUN, _SESSION, _SCHEMA = "Rookery-Run", "Rookery-Session", "Rookery-Schema"
_LEFT = "Rookery-Left-Ms"

_HEADER_BYTES_MAX: Final = 4 << 10
"""Room that is left for headers in a message."""


class AttemptQuery(msgspec.Struct, frozen=True):
    """An attempt of a call that a node asks after."""

    call: str
    attempt: int


class JobNames(msgspec.Struct, frozen=True):
    """Jobs that are spoken of, by their reply subjects, and calls that are asked after."""

    jobs: tuple[str, ...] = ()
    calls: tuple[AttemptQuery, ...] | UnsetType = UNSET


def job_headers(job: Job) -> list[tuple[str, str]]:
    """All of a job but its body; what is empty is left out."""
    headers = (
        (_LEFT, str(job.left_ms)),
        (_KEY, job.idempotency_key),
        (_CALL, job.call_id),
        (_ATTEMPT, str(job.attempt)),
        (_RUN, job.run_id),
        (_SESSION, job.session_id),
        (_SCHEMA, job.schema_digest),
        (TRACEPARENT, job.traceparent),
    )
    return [header for header in headers if header[1]]


def decode_job(message: Message, surface: str, tool: str) -> Job:
    """A job as it came, its body not yet looked for elsewhere. What is odd reads as unsaid."""

    def said(name: str) -> str:
        return header_value(message.header, name.encode())

    return Job(
        surface=surface,
        tool=tool,
        body=message.body,
        left_ms=_number(said(_LEFT)),
        call_id=said(_CALL),
        idempotency_key=said(_KEY),
        attempt=max(1, _number(said(_ATTEMPT))),
        session_id=said(_SESSION),
        run_id=said(_RUN),
        schema_digest=said(_SCHEMA),
        traceparent=said(TRACEPARENT),
        id=message.reply,
    )


def repeat_answer(answer: Outgoing, reply: str, asked: AttemptQuery) -> Outgoing:
    """A kept answer for a node that asks after its call."""
    told = [(_CALL, asked.call), (_ATTEMPT, str(asked.attempt))]
    return answer._replace(subject=reply, headers=[*answer.headers, *told])


def is_answer_to(message: Message, asked: AttemptQuery) -> bool:
    """Whether the message is that: others that come to the same subject say how a worker is."""
    call, attempt = (header_value(message.header, name.encode()) for name in (_CALL, _ATTEMPT))
    return bool(call) and (call, attempt) == (asked.call, str(asked.attempt))


def encode_no_result(reply: str, outcome: str, code: str, reason: str) -> Outgoing:
    """Said instead of an answer."""
    body = encode_json(JobAnswer(error=ToolFault(code, reason)))
    return Outgoing(reply, body, headers=[(_OUTCOME, outcome)])


def decode_outcome(message: Message) -> tuple[str, ToolFault]:
    """What is said instead of an answer, and why; empty if it is one."""
    outcome = header_value(message.header, _OUTCOME.encode())
    if not outcome:
        return "", ToolFault("", "")
    try:
        error = msgspec.json.decode(message.body, type=JobAnswer).error
    except msgspec.MsgspecError:
        return outcome, ToolFault("", "the worker does not say why")
    return outcome, error if isinstance(error, ToolFault) else ToolFault("", "")


class LargeBodies:
    """Bodies of any size in messages of a limited one."""

    def __init__(self, connection: Connection, blobs: Blobs) -> None:
        self._connection, self._blobs = connection, blobs

    async def pack(self, message: Outgoing) -> Outgoing:
        """As it can be sent."""
        if len(message.body) <= self._connection.client.max_payload - _HEADER_BYTES_MAX:
            return message
        digest = await self._blobs.put(message.body)
        return message._replace(body=b"", headers=[*message.headers, (_BLOB, digest)])

    async def unpack(self, message: Message) -> bytes:
        """The body of what came."""
        digest = header_value(message.header, _BLOB.encode())
        return await self._blobs.get(digest) if digest else message.body


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
