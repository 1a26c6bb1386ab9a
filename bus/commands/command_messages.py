"""Commands as messages: headers, sealed reply subjects, decoding, and how they are published."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import cached_property, lru_cache
from typing import Final, TypeVar

from Crypto.Cipher import AES

from rookery.bus.credentials.credential import IDENTITY, IdentityVerifier
from rookery.bus.jetstream_api import MESSAGE_ID, AckVerdict, DeliveryInfo, decode_ack
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import header_value
from rookery.bus.ports import Delivery, EnvelopeProof, InboxPosition
from rookery.bus.ports.commands import NO_PROOF
from rookery.bus.subjects import Subjects, decode_token, hide_tokens, is_fired, is_plain
from rookery.schemas.commands import SIGNED_VERBS
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed, Refused

__all__ = [
    "CODE",
    "FACT_COUNT",
    "REPLY",
    "TIMER",
    "TRACEPARENT",
    "CommandDecoder",
    "ReplySeal",
    "command_headers",
    "decode_command",
    "is_reply_subject",
    "publish",
    "retry_until_deadline",
]

# --- headers --------------------------------------------------------------------------------------

# The headers of a command: their names, their encoding and their decoding.
#
# No message of a client can break the decoding: a missing or invalid header reads as empty. A node
# publishes replies with its own permissions, so subjects of the server and of the realm are refused
# as reply subjects, and so is a text as facts hold it.


CODE = "Rookery-Code"
FACT_COUNT = "Rookery-Fact-Count"
"""How many facts of its entity a view contains."""
CONTENT_TYPE = "Content-Type"
MODE = "Rookery-Mode"
INPUT_SOURCE = "Rookery-Input-Source"
REPLY = "Rookery-Reply"
TRACEPARENT = "traceparent"
SIGNATURE = "Rookery-Signature"
"""Of an envelope, by its sender's key."""
VOUCH = "Rookery-Vouch"
"""The word of the sender's realm that the key is the sender's."""
TIMER = "Rookery-Timer"
"""The command id of a fired timer; the server drops ``Nats-Msg-Id`` from a schedule."""

_CONTENT_TYPE = CONTENT_TYPE.encode()
_MODE = MODE.encode()
_INPUT_SOURCE = INPUT_SOURCE.encode()
_TRACEPARENT = TRACEPARENT.encode()
_IDENTITY = IDENTITY.encode()
_SIGNATURE, _VOUCH = SIGNATURE.encode(), VOUCH.encode()

_RESERVED = ("$", "~", "rookery.", "service.")
"""What the server, facts, realms and their services use."""
_SUBJECT_BYTES_MAX = 1024
"""A quarter of the longest control line that the server accepts."""
_REQUEST_MAX = 32
"""Characters of the last token that a client counts up; a longer one has its own check."""
_CONNECTIONS_MAX = 4_096


def is_reply_subject(subject: str) -> bool:
    """Whether a node may publish a reply to this subject of a client."""
    connection, _, request = subject.rpartition(".")
    is_short = len(request) <= _REQUEST_MAX and request.isalnum() and request.isascii()
    return (is_short and _is_connection(connection)) or _is_valid(subject)


@lru_cache(maxsize=_CONNECTIONS_MAX)
def _is_connection(connection: str) -> bool:
    """Whether a reply subject may begin so. All requests of a connection share this part, and the
    full check costs more than the rest of decoding a request."""
    return _is_valid(f"{connection}.{'0' * _REQUEST_MAX}")


def _is_valid(subject: str) -> bool:
    fits = len(subject.encode()) <= _SUBJECT_BYTES_MAX
    return fits and is_plain(subject) and not subject.startswith(_RESERVED)


def command_headers(
    message_id: str = "",
    *,
    content_type: str = "",
    mode: str = "",
    input_source: str = "",
    reply_to: str = "",
    traceparent: str = "",
    identity: str = "",
    proof: EnvelopeProof = NO_PROOF,
) -> list[tuple[str, str]]:
    """The headers of a command, without the empty ones."""
    headers = (
        (MESSAGE_ID, message_id),
        (CONTENT_TYPE, content_type),
        (MODE, mode),
        (INPUT_SOURCE, input_source),
        (REPLY, reply_to),
        (TRACEPARENT, traceparent),
        (IDENTITY, identity),
        (SIGNATURE, proof.signature),
        (VOUCH, proof.vouch),
    )
    return [header for header in headers if header[1]]


def decode_command(message: Message, command_id: str, reply_to: str) -> Delivery:
    """Decode a message; verb and key are the last two tokens of its subject."""
    _, verb, key = message.subject.rsplit(".", 2)
    header = message.header
    verb = decode_token(verb)
    return Delivery(
        verb=verb,
        key=decode_token(key),
        id=command_id,
        body=message.body,
        content_type=header_value(header, _CONTENT_TYPE),
        mode=header_value(header, _MODE),
        input_source=header_value(header, _INPUT_SOURCE),
        reply_to=reply_to if is_reply_subject(reply_to) else "",
        traceparent=header_value(header, _TRACEPARENT),
        identity=header_value(header, _IDENTITY),
        proof=_proof_in(header) if verb in SIGNED_VERBS else NO_PROOF,
    )


def _proof_in(header: bytes) -> EnvelopeProof:
    return EnvelopeProof(header_value(header, _SIGNATURE), header_value(header, _VOUCH))


# --- reply seal -----------------------------------------------------------------------------------

# Reply subjects as facts hold them: readable by nodes only.
#
# A client may name any inbox as its reply subject, and every client reads facts. A client that knew
# another one's inbox could have a node answer there. So the part of a reply subject that names the
# connection is encrypted before it reaches a fact, always to the same text, and decrypted when the
# reply is sent. Facts of older nodes have plain subjects.


_MARK: Final = "~"
_TAG_BYTES: Final = 16
_REMEMBERED: Final = 4_096


class ReplySeal:
    """Encrypts and decrypts reply subjects with a key of the realm's nodes."""

    def __init__(self, secret: str) -> None:
        self._key = bytes.fromhex(digest_bytes(f"rookery.reply.v1\n{secret}".encode()))
        self._sealed = _Memory(self._encrypt)
        self._opened = _Memory(self._decrypt)

    def seal(self, subject: str) -> str:
        """The subject for facts; its last token, which a client counts up, stays readable."""
        connection, dot, request = subject.rpartition(".")
        return f"{self._sealed.get(connection)}{dot}{request}" if connection else subject

    def open(self, sealed: str) -> str:
        """The subject to reply to; empty if the text is sealed with another key."""
        if not sealed.startswith(_MARK):
            return sealed
        connection, dot, request = sealed.rpartition(".")
        opened = self._opened.get(connection)
        return f"{opened}{dot}{request}" if opened else ""

    def _encrypt(self, text: str) -> str:
        encrypted, tag = AES.new(self._key, AES.MODE_SIV).encrypt_and_digest(text.encode())
        return _MARK + urlsafe_b64encode(tag + encrypted).rstrip(b"=").decode()

    def _decrypt(self, sealed: str) -> str:
        text = sealed.removeprefix(_MARK)
        try:
            data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            cipher = AES.new(self._key, AES.MODE_SIV)
            opened = cipher.decrypt_and_verify(data[_TAG_BYTES:], data[:_TAG_BYTES])
        except ValueError:
            return ""
        return opened.decode()


class _Memory:
    """The newest results of a function."""

    def __init__(self, compute: Callable[[str], str]) -> None:
        self._compute = compute
        self._results: OrderedDict[str, str] = OrderedDict()

    def get(self, text: str) -> str:
        found = self._results.get(text)
        if found is None:
            found = self._results[text] = self._compute(text)
            if len(self._results) > _REMEMBERED:
                self._results.popitem(last=False)
        return found


# --- decoder --------------------------------------------------------------------------------------

# Messages of clients and of fired timers as deliveries of the kernel.
#
# A delivery says which credential has signed the command, and holds its reply subject as facts may.


UNSIGNED: Final = "unsigned"

_MESSAGE_ID: Final = MESSAGE_ID.encode()
_TIMER: Final = TIMER.encode()
_REPLY: Final = REPLY.encode()


class CommandDecoder:
    """Decodes the commands of one realm, on a connection that knows its node token by then."""

    def __init__(self, subjects: Subjects, issuer: str) -> None:
        """``issuer``: public key of the issuer of the realm's credentials; empty: every
        command counts as unsigned."""
        self._subjects = subjects
        self._identities = IdentityVerifier(subjects.realm, issuer)

    @cached_property
    def _seal(self) -> ReplySeal:
        return ReplySeal(self._subjects.node_token)

    def from_inbox(
        self, message: Message, partition: int, info: DeliveryInfo, attempt: int
    ) -> Delivery:
        """The delivery of a command or a fired timer in the inbox."""
        fired = is_fired(message.subject)
        command_id = header_value(message.header, _TIMER if fired else _MESSAGE_ID)
        command_id = command_id or f"inbox.{info.sequence}"
        reply_to = "" if fired else header_value(message.header, _REPLY)
        delivery = decode_command(message, command_id, reply_to)
        if not fired:
            self.identify(delivery)
        delivery.position = InboxPosition(partition, info.sequence, "timers" if fired else "inbox")
        delivery.arrived_ms = info.stored_at_ms
        delivery.attempt = attempt
        return delivery

    def open_reply(self, sealed: str) -> str:
        """The subject to which a node may publish a reply; empty if there is none."""
        subject = self._seal.open(sealed)
        return subject if is_reply_subject(subject) else ""

    def identify(self, delivery: Delivery) -> Delivery:
        """Fill in who sent the command, and replace its reply subject by one for facts."""
        delivery.reply_to = self._seal.seal(delivery.reply_to)
        sender = self._identities.sender_of(delivery.identity)
        delivery.by, delivery.privacy_max = sender.name or UNSIGNED, sender.privacy_max
        return delivery


# --- publishing -----------------------------------------------------------------------------------

# Publishing to a stream, repeated until the server acks.
#
# A lost ack looks like a lost message, so a message may be stored twice: commands have an id,
# schedules replace each other, and the stream of dead letters has a duplicate window.


T = TypeVar("T")

_DEADLINE_S = 10.0
_TRY_S = 2.0
_PAUSE_S = 0.1


async def publish(connection: Connection, message: Outgoing) -> int:
    """Store ``message`` in the stream of its subject; returns its sequence.

    ``Failed`` SERVER_UNREACHABLE or JOURNAL_FULL, ``Refused`` PAYLOAD_TOO_LARGE.
    """
    reply = await retry_until_deadline(lambda: connection.request(message, timeout_s=_TRY_S))
    ack = decode_ack(reply)
    text = f"JetStream error {ack.description} for {hide_tokens(message.subject)[:200]}"
    match ack.verdict:
        case AckVerdict.STORED:
            return ack.sequence
        case AckVerdict.TOO_LARGE:
            raise Refused("PAYLOAD_TOO_LARGE", text)
        case AckVerdict.FULL:
            raise Failed("JOURNAL_FULL", text)
        case _:
            raise Failed("STREAM_MISMATCH", text)


async def retry_until_deadline(request: Callable[[], Awaitable[T]]) -> T:
    """Repeat ``request`` for up to ten seconds; then raise its last ``Failed``."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _DEADLINE_S
    while True:
        try:
            return await request()
        except Failed:
            if loop.time() + _PAUSE_S >= deadline_s:
                raise
        await asyncio.sleep(_PAUSE_S)
