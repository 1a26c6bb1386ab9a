"""Answers nobody could read: what can be said of them, so that they are on record as refused.

Nothing here trusts the bytes. Whether there is anything the answer could have been about, and how
many are recorded, is ``answering``'s to say.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from rookery.schemas.errors import CodedError, Refused

__all__ = ["MalformedAnswer", "malformed_answer"]

SEARCHED_BYTES: Final = 64 << 10
_APPROVAL_ID: Final = re.compile(rb'"approval_id"\s*:\s*"([A-Za-z0-9_.-]{1,200})"')


class MalformedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came as an answer and is none."""

    approval_id: str
    """As far as one stands in it, however damaged the rest is."""
    code: str
    message: str
    hint: str

    @property
    def refusal(self) -> Refused:
        return Refused(self.code, self.message, hint=self.hint)


def malformed_answer(body: bytes, error: CodedError) -> MalformedAnswer:
    """What is decided on instead of ``body``, which could not be read because of ``error``."""
    named = _APPROVAL_ID.search(body, 0, SEARCHED_BYTES)
    return MalformedAnswer(
        approval_id="" if named is None else named[1].decode(),
        code=error.code,
        message=error.message,
        hint=error.hint,
    )
