"""Jobs on the wire: what a worker in any language needs to serve tools, and how large bodies
travel.

A worker of surface S needs a NATS client and two subscriptions:

``rookery.<realm>.tool.S.<tool>``, queue group ``rookery``: a call. Body ``{"args": [...], "kwargs":
{...}}``. Headers: ``Rookery-Left-Ms`` (time left for the call, from its arrival),
``Idempotency-Key`` and ``Rookery-Call`` (the same for every attempt of a call),
``Rookery-Attempt``, ``Rookery-Run``, ``Rookery-Session``, ``Rookery-Schema``, ``traceparent``; for
a capability with a ``"binding"``, ``Rookery-Credential``, base64 of ``{"value", "scheme"}``, which
no answer may repeat: ``"credential_rejected": true`` reports that a service refused it. The
answer goes to the message's reply subject: ``{"value": ...}`` or ``{"error": {"code",
"message"}}``. The reply subject is ``rookery.<realm>.result.S.<secret of the node>.<n>``, so a
worker of S needs permission for ``rookery.<realm>.result.S.>`` only; it ignores calls with another
subject of the realm. The header ``Rookery-Outcome: not-begun`` means that another worker may get
the call (this one is at capacity, or draining), ``Rookery-Outcome: unknown`` that the outcome is
unknown; the body then has an ``error`` with the reason.

``rookery.<realm>.crew.S.*``, no queue group: the reply to ``.catalogue`` is ``{"worker", "tools":
[{"capability": {...}, "awaited": false}]}``. A capability has ``"idempotent": false`` if a second
call under the same key would act again; otherwise the node may repeat the call. Optional:
``.cancel`` (body ``{"jobs": [reply subject]}``) names cancelled jobs. The reply to ``.health``
(same body: jobs that a node waits for) is ``{"worker", "draining", "running": [{"id": reply
subject, ...}]}``; before it the worker repeats the answers of the named jobs, which may have been
lost.

Optional, for nodes that take over calls of another node: a worker records the last attempt of each
call (``Rookery-Call``) and answers an earlier one ``not-begun`` with the error code ``CANCELLED``.
To ``.health`` with ``{"calls": [{"call", "attempt"}]}`` it adds ``"calls": [{"call", "attempt",
"state", "id"}]`` and ``"remembers_ms"``, how far back it knows every call. States: ``running``
(``id`` is the job's reply subject), ``ended`` (the stored answer precedes the reply, with the
headers ``Rookery-Call`` and ``Rookery-Attempt``), ``unknown``, and ``not-begun``: from then on the
worker answers this attempt and earlier ones ``not-begun``. Without this support an operator has to
find out what the worker did.

``$SRV.INFO`` of NATS micro would not do: its metadata is a map of strings, where schemas would be
strings in strings, and its health has no single calls.

A body above the server's limit for a message is in the realm's blob store; the header
``Rookery-Blob`` is its digest. ``bus/reads/service.py`` says how a worker reads and uploads blobs
through a node.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from rookery.bus.commands.command_messages import TRACEPARENT
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import header_value
from rookery.bus.ports import BlobReader
from rookery.schemas.calls import ToolFault
from rookery.schemas.codec import encode_json
from rookery.schemas.worker_protocol import Job, JobAnswer, JobCredential

__all__ = [
    "CANCEL",
    "CANCELLED",
    "CATALOGUE",
    "HEALTH",
    "NOT_STARTED",
    "QUEUE",
    "UNKNOWN",
    "AttemptQuery",
    "BodyStore",
    "JobNames",
    "LargeBodies",
    "body_blob",
    "decode_job",
    "decode_outcome",
    "encode_no_result",
    "is_answer_to",
    "job_headers",
    "readdressed_answer",
]

QUEUE: Final = "rookery"
CATALOGUE, HEALTH, CANCEL = "catalogue", "health", "cancel"
NOT_STARTED, UNKNOWN = "not-begun", "unknown"
CANCELLED = "CANCELLED"
"""Error code beside ``not-begun`` of an attempt that no other worker may begin either."""

_OUTCOME, _BLOB = "Rookery-Outcome", "Rookery-Blob"
_KEY, _CALL, _ATTEMPT = "Idempotency-Key", "Rookery-Call", "Rookery-Attempt"
_RUN, _SESSION, _SCHEMA = "Rookery-Run", "Rookery-Session", "Rookery-Schema"
_LEFT, _CREDENTIAL = "Rookery-Left-Ms", "Rookery-Credential"

_HEADER_BYTES_MAX: Final = 4 << 10
"""Space for headers in a message, beside a credential."""


class AttemptQuery(msgspec.Struct, frozen=True):
    """An attempt of a call that a node asks about."""

    call: str
    attempt: int


class JobNames(msgspec.Struct, frozen=True):
    """Jobs by their reply subjects, and calls to report on."""

    jobs: tuple[str, ...] = ()
    calls: tuple[AttemptQuery, ...] | UnsetType = UNSET


def job_headers(job: Job) -> list[tuple[str, str]]:
    """The headers of a job; empty values are left out."""
    headers = (
        (_LEFT, str(job.left_ms)),
        (_KEY, job.idempotency_key),
        (_CALL, job.call_id),
        (_ATTEMPT, str(job.attempt)),
        (_RUN, job.run_id),
        (_SESSION, job.session_id),
        (_SCHEMA, job.schema_digest),
        (TRACEPARENT, job.traceparent),
        (_CREDENTIAL, _encode_credential(job.credential)),
    )
    return [header for header in headers if header[1]]


def decode_job(message: Message, surface: str, tool: str) -> Job:
    """The job of a message, without the body of a blob. Malformed headers count as absent."""

    def header(name: str) -> str:
        return header_value(message.header, name.encode())

    return Job(
        surface=surface,
        tool=tool,
        body=message.body,
        left_ms=_number(header(_LEFT)),
        call_id=header(_CALL),
        idempotency_key=header(_KEY),
        attempt=max(1, _number(header(_ATTEMPT))),
        session_id=header(_SESSION),
        run_id=header(_RUN),
        schema_digest=header(_SCHEMA),
        traceparent=header(TRACEPARENT),
        credential=_decode_credential(header(_CREDENTIAL)),
        id=message.reply,
    )


def _encode_credential(credential: JobCredential | None) -> str:
    return "" if credential is None else b64encode(encode_json(credential)).decode()


def _decode_credential(text: str) -> JobCredential | None:
    try:
        return msgspec.json.decode(b64decode(text), type=JobCredential) if text else None
    except (ValueError, msgspec.MsgspecError):
        return None


def readdressed_answer(answer: Outgoing, reply: str, query: AttemptQuery) -> Outgoing:
    """A stored answer for a node that asks about its call."""
    headers = [(_CALL, query.call), (_ATTEMPT, str(query.attempt))]
    return answer._replace(subject=reply, headers=[*answer.headers, *headers])


def is_answer_to(message: Message, query: AttemptQuery) -> bool:
    """Whether the message is that answer; health replies come to the same subject."""
    call, attempt = (header_value(message.header, name.encode()) for name in (_CALL, _ATTEMPT))
    return bool(call) and (call, attempt) == (query.call, str(query.attempt))


def encode_no_result(reply: str, outcome: str, code: str, reason: str) -> Outgoing:
    """The message of a job without an answer."""
    body = encode_json(JobAnswer(error=ToolFault(code, reason)))
    return Outgoing(reply, body, headers=[(_OUTCOME, outcome)])


def decode_outcome(message: Message) -> tuple[str, ToolFault]:
    """The outcome and reason of a message without an answer; empty for an answer."""
    outcome = header_value(message.header, _OUTCOME.encode())
    if not outcome:
        return "", ToolFault("", "")
    try:
        error = msgspec.json.decode(message.body, type=JobAnswer).error
    except msgspec.MsgspecError:
        return outcome, ToolFault("", "the worker gave no reason")
    return outcome, error if isinstance(error, ToolFault) else ToolFault("", "")


class BodyStore(BlobReader, Protocol):
    """The blobs, as a worker has them."""

    async def put(self, data: bytes) -> str:
        """Store ``data`` and return its digest."""


class LargeBodies:
    """Bodies of any size in messages of limited size."""

    def __init__(self, connection: Connection, blobs: BodyStore) -> None:
        self._connection, self._blobs = connection, blobs

    async def pack(self, message: Outgoing) -> Outgoing:
        """The message in a form that can be sent."""
        credential_bytes = sum(len(text) for name, text in message.headers if name == _CREDENTIAL)
        most = self._connection.client.max_payload - _HEADER_BYTES_MAX - credential_bytes
        if len(message.body) <= most:
            return message
        digest = await self._blobs.put(message.body)
        return message._replace(body=b"", headers=[*message.headers, (_BLOB, digest)])

    async def unpack(self, message: Message) -> bytes:
        """The body of a received message."""
        digest = body_blob(message)
        return await self._blobs.get(digest) if digest else message.body


def body_blob(message: Message) -> str:
    """The blob that has the body of a received message; empty if the message has it."""
    return header_value(message.header, _BLOB.encode())


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
