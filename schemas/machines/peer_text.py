"""Texts of prompts about peers: JSON for people, names, and how to answer a request."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from rookery.schemas.digest import canonical_json

__all__ = ["SendResponseCallProjection", "display_suffix", "pretty_json", "trimmed"]


def pretty_json(value: object) -> str:
    """``value`` as indented JSON: two blanks per level, keys sorted; ``None`` is ``null``."""
    return msgspec.json.format(canonical_json(value), indent=2).decode()


_WHITE_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""White space of Unicode. ``str.strip`` also strips four control characters, which are invalid
here."""


def trimmed(text: str) -> str:
    """``text`` without surrounding white space."""
    return text.strip(_WHITE_SPACE)


def display_suffix(display_name: str | None) -> str:
    """The text after a peer's id if the peer has a display name."""
    name = trimmed(display_name or "")
    return f" (display_name: {name})" if name else ""


class SendResponseCallProjection(msgspec.Struct, frozen=True, kw_only=True):
    """The tool call that answers a request, as the prompt describes it."""

    TOOL_NAME: ClassVar[str] = "send_response"

    peer_id: str
    display_name: str | None = None
    in_reply_to: str

    def arguments(self) -> dict[str, str]:
        """The arguments of an answer without a result."""
        made = {"in_reply_to": self.in_reply_to, "peer_id": self.peer_id, "status": "completed"}
        name = trimmed(self.display_name or "")
        return {**made, "display_name": name} if name else made

    def instruction_text(self) -> str:
        return (
            f"Answer it with the tool {self.TOOL_NAME} and these arguments: "
            f"{canonical_json(self.arguments()).decode()}. "
            'If it cannot be done, the status is "failed". '
            "Give a result only if the contract of the request says which type it has."
        )
