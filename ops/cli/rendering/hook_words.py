"""The words for what hooks answer, and for their registrations, for lines of people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["note_words", "registration_words", "response_words", "unparked_words"]

FactFields = Mapping[str, Any]


def response_words(response: FactFields) -> str:
    """What a response of a hook changes."""
    payload = response.get("payload") or {}
    payloads = payload if isinstance(payload, list) else [payload]  # A list of inputs, or of ids.
    return f"{response['type']}: {'; '.join(map(_payload_words, payloads))}"


def _payload_words(payload: Any) -> str:
    if not isinstance(payload, Mapping):
        return str(payload)
    code = f"{payload['code']}: " if "code" in payload else ""
    return f"{code}{payload.get('redacted_summary', '')}"


def note_words(fields: FactFields) -> str:
    """What an audited hook would have done, or how one has failed."""
    if error := fields.get("error"):
        return f"FAILED after {fields['elapsed_ms']} ms: {error}"
    return f"would {fields.get('would')} ({fields['mode']})"


def registration_words(fields: FactFields) -> str:
    """Where a hook of the realm is, and in which mode."""
    registration = fields["registration"]
    mode, point = registration.get("mode") or "enforce", registration["spec"]["point"]
    return f"hook {fields['hook_id']} is registered at {point}, in mode {mode}"


def unparked_words(fields: FactFields) -> str:
    """That a run goes on, and with which hooks if they are others than before."""
    if fields.get("hooks") is None:
        return "goes on"
    names = ", ".join(one["hook_id"] for one in fields["hooks"])
    return f"goes on with other hooks: {names or 'none'}"
