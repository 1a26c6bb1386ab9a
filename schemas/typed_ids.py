"""Text with a type: ids of agents, runs and effects, and the few other words JSON keeps bare.

An id is never empty, over 512 bytes or with control characters, neither when it is made nor when
it is read, and it does not show: ``repr`` and ``str`` say its type only, ``as_str`` is its text.
What an id points at, and whether that exists, is not known here. msgspec learns of these types by
``encode_typed_text`` and ``decode_typed_text``, its two hooks; every codec of ours has them.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

__all__ = [
    "ID_BYTES_MAX",
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
    "HookId",
    "IdControlCharacter",
    "IdEmpty",
    "IdTooLong",
    "IdValidationError",
    "IdempotencyKey",
    "Identifier",
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
    "decode_typed_text",
    "encode_typed_text",
    "typed_text_schema",
]

ID_BYTES_MAX: Final = 512

# Surrogates have no UTF-8 and count as control characters: neither can be in a log or in JSON.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class TypedText:
    """Text that is not just any text. Two are equal if their types are, too."""

    __slots__ = ("_text",)

    SCHEMA: ClassVar[dict[str, Any]] = {"type": "string"}

    def __init__(self, text: str) -> None:
        self.check(text)
        self._text = text

    @classmethod
    def check(cls, text: str) -> None:
        """Raise ``ValueError`` if this type has no such text."""

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
    """Why some text is no id. It never says the text."""


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


# --- who and what runs ----------------------------------------------------------------------------


class AgentId(Identifier):
    """``agent.<session>``."""

    __slots__ = ()


class SessionId(Identifier):
    """A session as records name it; ``ids.check_session_id`` says what a session may be called."""

    __slots__ = ()


class RunId(Identifier):
    __slots__ = ()


class TurnId(Identifier):
    """``turn.<run>``."""

    __slots__ = ()


class AttemptId(Identifier):
    """One of several tries at the same step of a turn."""

    __slots__ = ()


class ToolCallId(Identifier):
    """A call of a tool; the machines call it an operation."""

    __slots__ = ()


class EffectId(Identifier):
    """An act on the outside world; its intent and its result share it."""

    __slots__ = ()


class ApprovalRequestId(Identifier):
    """``<session>.<operation>``."""

    __slots__ = ()


class HookId(Identifier):
    __slots__ = ()


class MessageId(Identifier):
    __slots__ = ()


class ContextProjectionId(Identifier):
    """What of a context was shown to a model."""

    __slots__ = ()


class EventId(Identifier):
    __slots__ = ()


class SpanId(Identifier):
    """A span of a trace."""

    __slots__ = ()


# --- what refs name -------------------------------------------------------------------------------


class EntityRefId(Identifier):
    """Anything an ``EntityRef`` names. The seeds say EntityId, which is a journal subject here."""

    __slots__ = ()


class SourceId(Identifier):
    __slots__ = ()


class DestinationId(Identifier):
    __slots__ = ()


class PolicyId(Identifier):
    __slots__ = ()


class AdapterRef(Identifier):
    """What isolates a call from the host."""

    __slots__ = ()


class ContentRef(Identifier):
    """Content that is kept elsewhere; holding the ref gives no right to read it."""

    __slots__ = ()


class LineageId(Identifier):
    __slots__ = ()


class CorrelationKey(Identifier):
    __slots__ = ()


class CorrelationValue(Identifier):
    __slots__ = ()


# --- what makes a repeat harmless -----------------------------------------------------------------


class IdempotencyKey(Identifier):
    """The same effect asked for again carries the same key."""

    __slots__ = ()


class DedupeKey(Identifier):
    """A receiver drops the second message that carries it."""

    __slots__ = ()


# --- msgspec's hooks ------------------------------------------------------------------------------


def encode_typed_text(value: object) -> str:
    """``enc_hook``: the bare string of a typed text."""
    if isinstance(value, TypedText):
        return value.as_str()
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def decode_typed_text(kind: type, value: object) -> object:
    """``dec_hook``: a typed text of a bare string, checked."""
    if issubclass(kind, TypedText) and isinstance(value, str):
        return kind(value)
    raise TypeError(f"expected `{kind.__name__}`, got `{type(value).__name__}`")


def typed_text_schema(kind: type) -> dict[str, Any]:
    """``schema_hook``: what a typed text looks like."""
    if issubclass(kind, TypedText):
        return {"title": kind.__name__, **kind.SCHEMA}
    raise TypeError(f"{kind.__name__} has no JSON schema")
