"""Ids: of sessions, facts and runs, and other text with a type of its own."""

from __future__ import annotations

import posixpath
import re
from functools import lru_cache
from hashlib import sha3_256
from typing import Any, ClassVar, Final

from msgspec import UNSET, UnsetType

from rookery.schemas.errors import Refused

__all__ = [
    "ID_BYTES_MAX",
    "REALM_KEY",
    "AdapterRef",
    "AgentId",
    "ApprovalRequestId",
    "AttemptId",
    "ContentRef",
    "ContextProjectionId",
    "CorrelationKey",
    "CorrelationValue",
    "DedupeKey",
    "DestinationId",
    "EffectId",
    "EntityRefId",
    "EventId",
    "HookExecutorRef",
    "HookId",
    "IdControlCharacter",
    "IdEmpty",
    "IdTooLong",
    "IdValidationError",
    "IdempotencyKey",
    "Identifier",
    "JournalCursor",
    "LineageId",
    "MessageId",
    "PolicyId",
    "RunId",
    "SessionId",
    "SourceId",
    "SpanId",
    "ToolCallId",
    "TurnId",
    "TypedText",
    "check_client_session",
    "check_command_id",
    "check_file_path",
    "check_session_id",
    "decode_typed_text",
    "derived_uuid7",
    "encode_typed_text",
    "fact_id",
    "node_of_holder",
    "parse_fact_id",
    "parse_position",
    "parse_reaction_id",
    "process_of_holder",
    "reaction_id",
    "typed_text_schema",
    "uuid7",
]

# --- ids ------------------------------------------------------------------------------------------

# Ids: session ids, UUIDv7, fact ids, reaction ids.
#
# Randomness and time are arguments: every id is a function of its arguments.


REALM_KEY: Final = "_realm"
"""The key of what a realm has one of: its catalogue of surfaces, and its hooks."""
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_FACT_ID = re.compile(r"([^.]+)\.(.+)\.(0|[1-9][0-9]{0,18})\Z", re.DOTALL)
_POSITION = re.compile(r"([1-9][0-9]{0,18})(?:\.([1-9][0-9]{0,8}))?")
_FOLDERS = ("/", "/tmp", "/work", "/work/out")  # noqa: S108 - in the sandbox.
_COMMAND_ID = re.compile(r"[\x21-\x7e]{1,128}\Z")


def check_session_id(text: str) -> str:
    """``text`` if it may name a session; a session id is also a safe subject token."""
    if not (isinstance(text, str) and _SESSION_ID.match(text)):
        raise Refused(
            "INVALID_SESSION_ID",
            f"session id {text!r:.80} must match ^[A-Za-z0-9_-]{{1,64}}$",
        )
    return text


def check_client_session(text: str) -> str:
    """``text`` if a client may use a session of this name: those with a first ``_`` are the realm's
    own."""
    if check_session_id(text).startswith("_"):
        raise Refused("INVALID_SESSION_ID", f"session id {text}: ids with a first _ are reserved")
    return text


def check_command_id(text: str) -> str:
    """``text`` if it may be a message id: 1 to 128 visible ASCII characters."""
    if not (isinstance(text, str) and _COMMAND_ID.match(text)):
        raise Refused(
            "INVALID_ARGUMENT",
            f"message id {text!r:.80} must be 1 to 128 visible ASCII characters",
            hint="a UUID makes a good Nats-Msg-Id",
        )
    return text


def check_file_path(path: str) -> str:
    """``path`` if a file of a session may have it; paths are relative to ``/work``."""
    whole = posixpath.normpath(posixpath.join("/work", path))
    if path.rpartition("/")[2] in ("", ".", "..") or whole in _FOLDERS:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{path[:80]!r} names a folder of the session",
            hint="name a file below /work, as in data/in.csv; /work/out has the artifacts of runs",
        )
    return path


def uuid7(now_ms: int, random: bytes) -> str:
    """A UUIDv7: 48 bits of time, then 74 of the ten ``random`` bytes."""
    assert len(random) >= 10
    bits = int.from_bytes(random[:10], "big")
    value = (now_ms & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (bits >> 68) << 64
    value |= 0b10 << 62 | bits & 0x3FFF_FFFF_FFFF_FFFF
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def derived_uuid7(now_ms: int, *parts: str) -> str:
    """A UUIDv7 whose random part is a digest of ``parts``: the same cause makes the same id."""
    return uuid7(now_ms, sha3_256("\0".join(parts).encode()).digest())


def fact_id(family: str, key: str, number: int) -> str:
    """The id of an entity's ``number``-th fact."""
    return f"{family}.{key}.{number}"


def parse_fact_id(text: str) -> tuple[str, str, int]:
    """``(family, key, number)`` of a fact id; a key may itself contain dots."""
    found = _FACT_ID.match(text)
    if not found:
        raise Refused("INVALID_ARGUMENT", f"{text[:80]!r} is not a fact id")
    family, key, number = found.groups()
    return family, key, int(number)


def parse_position(text: str) -> tuple[int, int | UnsetType]:
    """The sequence and the number of a fact, from ``SEQ.N``, or the sequence alone from ``SEQ``."""
    found = _POSITION.fullmatch(text)
    if found is None:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{text[:80]!r} is no position of a fact",
            hint="a sequence like 12, or a fact of its message like 12.3: rookery runs show",
        )
    sequence, number = found.groups()
    return int(sequence), UNSET if number is None else int(number)


def reaction_id(fact: str, family: str) -> str:
    """The command id of ``family``'s reaction to a fact: the same fact is handled once."""
    return f"{fact}/{family}"


def parse_reaction_id(text: str) -> tuple[str, str, int] | None:
    """The parts of the fact id inside a reaction id; ``None`` for other ids."""
    found = _FACT_ID.match(text.rpartition("/")[0])
    if not found:
        return None
    family, key, number = found.groups()
    return family, key, int(number)


# --- typed ids ------------------------------------------------------------------------------------

# Typed text: ids of agents, runs and effects, and other strings with a type of their own.
#
# An id is not empty, has at most 512 bytes and no control characters. ``repr`` and ``str`` show its
# type only, so that ids stay out of logs; ``as_str`` returns its text. msgspec handles these types
# by two hooks, ``encode_typed_text`` and ``decode_typed_text``, which every codec here has.


ID_BYTES_MAX: Final = 512
KNOWN_TEXTS_MAX: Final = 4_096
"""As many are decoded once."""

# Surrogates have no UTF-8 and count as control characters: logs and JSON cannot hold either.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class TypedText:
    """A string with a type. Equality includes the type."""

    __slots__ = ("_text",)

    SCHEMA: ClassVar[dict[str, Any]] = {"type": "string"}

    def __init__(self, text: str) -> None:
        self.check(text)
        self._text = text

    @classmethod
    def check(cls, text: str) -> None:
        """Raise ``ValueError`` if ``text`` is invalid for this type."""

    def as_str(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.as_str() == self._text

    def __hash__(self) -> int:
        return hash((type(self), self._text))

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._text!r})"


class IdValidationError(ValueError):
    """Why a text is not a valid id. The message never contains the text."""


class IdEmpty(IdValidationError):
    def __init__(self) -> None:
        super().__init__("identifier is empty")


class IdTooLong(IdValidationError):
    def __init__(self, *, max: int, actual: int) -> None:  # noqa: A002 - the contract's name.
        super().__init__(f"identifier length {actual} exceeds max {max}")
        self.max, self.actual = max, actual


class IdControlCharacter(IdValidationError):
    def __init__(self, *, index: int) -> None:
        super().__init__(f"identifier contains control character at byte {index}")
        self.index = index


class Identifier(TypedText):
    """A text that identifies something, and stays out of logs."""

    __slots__ = ()

    SCHEMA: ClassVar[dict[str, Any]] = {"type": "string", "minLength": 1, "maxLength": ID_BYTES_MAX}

    @classmethod
    def check(cls, text: str) -> None:
        if 0 < len(text) <= ID_BYTES_MAX and text.isascii() and text.isprintable():
            return  # Nearly every id; the rest of the test takes three times as long.
        if not text:
            raise IdEmpty
        size_bytes = _size_bytes(text)
        if size_bytes > ID_BYTES_MAX:
            raise IdTooLong(max=ID_BYTES_MAX, actual=size_bytes)
        if found := _CONTROL.search(text):
            raise IdControlCharacter(index=_size_bytes(text[: found.start()]))

    def __str__(self) -> str:
        return f"{type(self).__name__}(redacted)"

    __repr__ = __str__


def _size_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


# --- agents and runs ------------------------------------------------------------------------------


class AgentId(Identifier):
    """``agent.<session>``."""

    __slots__ = ()


class SessionId(Identifier):
    """A session in records; ``ids.check_session_id`` has the rule for names of sessions."""

    __slots__ = ()


class RunId(Identifier):
    __slots__ = ()


class TurnId(Identifier):
    """``turn.<run>``."""

    __slots__ = ()


class AttemptId(Identifier):
    """One attempt at a step of a turn."""

    __slots__ = ()


class ToolCallId(Identifier):
    """A call of a tool; in the machines, an operation."""

    __slots__ = ()


class EffectId(Identifier):
    """An effect on the outside world; its intent and its result share the id."""

    __slots__ = ()


class ApprovalRequestId(Identifier):
    """``<session>.<operation>``."""

    __slots__ = ()


class HookId(Identifier):
    __slots__ = ()


class HookExecutorRef(Identifier):
    """The executor that invokes a hook."""

    __slots__ = ()


class JournalCursor(Identifier):
    """The position of a record in the journal of its run; ends in ``.<number>``."""

    __slots__ = ()


class MessageId(Identifier):
    __slots__ = ()


class ContextProjectionId(Identifier):
    """The part of a context that a model was shown."""

    __slots__ = ()


class EventId(Identifier):
    __slots__ = ()


class SpanId(Identifier):
    """A span of a trace."""

    __slots__ = ()


# --- refs -----------------------------------------------------------------------------------------


class EntityRefId(Identifier):
    """Id in an ``EntityRef``. The contract's EntityId is a subject of the journal here."""

    __slots__ = ()


class SourceId(Identifier):
    __slots__ = ()


class DestinationId(Identifier):
    __slots__ = ()


class PolicyId(Identifier):
    __slots__ = ()


class AdapterRef(Identifier):
    """The adapter that isolates a call from the host."""

    __slots__ = ()


class ContentRef(Identifier):
    """Content stored elsewhere; the ref gives no right to read it."""

    __slots__ = ()


class LineageId(Identifier):
    __slots__ = ()


class CorrelationKey(Identifier):
    __slots__ = ()


class CorrelationValue(Identifier):
    __slots__ = ()


# --- duplicates -----------------------------------------------------------------------------------


class IdempotencyKey(Identifier):
    """The key of an effect; a repeated request has the same key."""

    __slots__ = ()


class DedupeKey(Identifier):
    """Key by which a receiver drops duplicates."""

    __slots__ = ()


def process_of_holder(holder: str) -> str:
    """The name of the process that holds a claim: its node's name, with a number if the node has
    several processes. Claims of older versions are held by the node's name alone."""
    return holder.rpartition(".")[0] or holder


def node_of_holder(holder: str) -> str:
    """The name of the node that holds a claim, without the number of its process."""
    return process_of_holder(holder).partition(".")[0]


# --- msgspec's hooks ------------------------------------------------------------------------------


def encode_typed_text(value: object) -> str:
    """``enc_hook``: the bare string of a typed text."""
    if isinstance(value, TypedText):
        return value.as_str()
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def decode_typed_text(kind: type, value: object) -> object:
    """``dec_hook``: a typed text of a bare string, checked."""
    if isinstance(value, str) and issubclass(kind, TypedText):
        if len(value) > ID_BYTES_MAX:
            return kind(value)
        return _known_text(kind, value)  # type: ignore[arg-type] # mypy takes its texts' hash.
    raise TypeError(f"expected `{kind.__name__}`, got `{type(value).__name__}`")


@lru_cache(KNOWN_TEXTS_MAX)
def _known_text(kind: type[TypedText], value: str) -> TypedText:
    """The facts of a run repeat its ids: to find one takes a fifth of what it takes to make it."""
    return kind(value)


def typed_text_schema(kind: type) -> dict[str, Any]:
    """``schema_hook``: the JSON schema of a typed text."""
    if issubclass(kind, TypedText):
        return {"title": kind.__name__, **kind.SCHEMA}
    raise TypeError(f"{kind.__name__} has no JSON schema")
