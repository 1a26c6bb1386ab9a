"""How prompts about peers spell things: JSON for people, names, and how to answer a request.

What the prompts say is ``projections``'s and ``admitted``'s.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from rookery.schemas.digest import canonical_json

__all__ = ["SendResponseCallProjection", "display_suffix", "pretty_json", "trimmed"]


def pretty_json(value: object) -> str:
    """``value`` as people read JSON: two blanks a level, keys sorted; nothing is ``null``."""
    return msgspec.json.format(canonical_json(value), indent=2).decode()


_WHITE_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's. ``str.strip`` takes four control characters more, which are not blank but invalid."""


def trimmed(text: str) -> str:
    """``text`` without the white space around it."""
    return text.strip(_WHITE_SPACE)


def display_suffix(display_name: str | None) -> str:
    """What follows a peer's id where the peer has a name for people."""
    name = trimmed(display_name or "")
    return f" (display_name: {name})" if name else ""


class SendResponseCallProjection(msgspec.Struct, frozen=True, kw_only=True):
    """The tool call that answers a request, as the asked one is told to make it."""

    TOOL_NAME: ClassVar[str] = "send_response"

    peer_id: str
    display_name: str | None = None
    in_reply_to: str

    def arguments(self) -> dict[str, str]:
        """Of an answer that has no result."""
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
