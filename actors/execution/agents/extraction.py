"""Extraction: the result of a run as JSON of a schema, from the last text of its model.

The model knows the schema from the beginning. A last text that does not fit leads to questions of
their own, without tools, that name what is wrong. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

from rookery.actors.tools.validation import validator_of
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused

__all__ = [
    "EXTRACTION_RETRIES_MAX",
    "Extracted",
    "check_output_schema",
    "extract",
    "extraction_text",
    "schema_instructions",
]

EXTRACTION_RETRIES_MAX: Final = 2
"""Questions for structured output after the first one."""
SCHEMA_BYTES_MAX: Final = 64 << 10
ERROR_CHARS_MAX: Final = 2_000
_FENCED: Final = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?```", re.DOTALL)
_WHAT: Final = "the output schema"


class Extracted(NamedTuple):
    """What a text has; ``error`` if it does not fit the schema."""

    value: Any = None
    error: str = ""


def check_output_schema(schema: Any) -> None:
    """Raise ``Refused`` for what is no JSON Schema, or is too large for a question."""
    size = len(encode_json(schema))
    if size > SCHEMA_BYTES_MAX:
        text = f"{_WHAT} has {size} bytes, the limit is {SCHEMA_BYTES_MAX}"
        raise Refused("PAYLOAD_TOO_LARGE", text)
    if not isinstance(schema, dict):
        raise Refused("INVALID_ARGUMENT", f"{_WHAT} is no JSON object")
    validator_of(schema, _WHAT)


def schema_instructions(schema: Any) -> str:
    """What the model is to know from the beginning."""
    text = encode_json(schema).decode()
    return f"Your last answer must be JSON alone, and fit this JSON Schema: {text}"


def extraction_text(error: str) -> str:
    """What the model is asked when its text does not fit."""
    return (
        f"Your answer does not fit the JSON Schema: {error}. Give the same answer as JSON that "
        "fits it, and nothing else."
    )


def extract(text: str, schema: Any) -> Extracted:
    """The value of a text, also of one that has it in a block of code."""
    fenced = _FENCED.search(text)
    candidate = text if fenced is None else fenced[1]
    try:
        value = msgspec.json.decode(candidate)
        canonical_json(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        return Extracted(error=f"it is no JSON ({error})"[:ERROR_CHARS_MAX])
    except Refused as refusal:
        return Extracted(error=refusal.message[:ERROR_CHARS_MAX])
    wrong = validator_of(schema, _WHAT).find_mismatch(value)
    if wrong is not None:
        return Extracted(error=f"at {wrong}"[:ERROR_CHARS_MAX])
    return Extracted(value)
