"""Replies of commands: to clients as JSON, to executors of this node as the values themselves.

A local ask is addressed by a subject that no client can have. Its reply never leaves the process,
so it is not encoded.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import asdict

from rookery.bus.ports import ReplyMessage
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError
from rookery.schemas.run import ErrorObject

__all__ = ["LOCAL_VERB", "LocalReply", "Reply", "error_reply", "is_local", "reply_of"]

LOCAL_VERB: Final = "inside"


class LocalReply(NamedTuple):
    """A reply to an executor of this node."""

    reply_to: str
    value: msgspec.Struct | CodedError

    @property
    def code(self) -> str:
        return self.value.code if isinstance(self.value, CodedError) else ""


Reply = ReplyMessage | LocalReply


def is_local(reply_to: str) -> bool:
    """Whether an executor of this node waits for the reply."""
    return reply_to.startswith(f"{LOCAL_VERB}/")


def reply_of(reply_to: str, value: msgspec.Struct, fact_count: int | None = None) -> Reply:
    """The reply with this value; ``fact_count`` as in ``ReplyMessage``."""
    if is_local(reply_to):
        return LocalReply(reply_to, value)
    return ReplyMessage(reply_to, encode_json(value), fact_count=fact_count)


def error_reply(reply_to: str, error: CodedError) -> Reply:
    """The reply for a refusal or a failure."""
    if is_local(reply_to):
        return LocalReply(reply_to, error)
    shown: dict[str, Any] = asdict(
        ErrorObject(code=error.code, message=error.message, hint=error.hint or None)
    )
    return ReplyMessage(reply_to, encode_json({"error": {**shown, **error.details}}), error.code)
