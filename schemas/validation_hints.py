"""Hints for a body that does not match its type.

The types provide them: a field's range, an enumeration's words, a struct's fields. Otherwise the
hint is where to read the whole schema.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

import msgspec

__all__ = ["Range", "hint_for", "range_of"]

_PLACE: Final = re.compile(r"at `\$((?:\.\w+)*)")
_SCHEMA: Final = "nats req '$SRV.INFO.rookery' '' prints the schema of every command"


class Range(NamedTuple):
    """Range of a whole number."""

    least: int
    most: int

    def hint(self, name: str) -> str:
        return f"{name} is a whole number from {self.least} to {self.most}"


def range_of(annotation: Any) -> Range | None:
    """The range in an annotation or in a member of it."""
    for part in get_args(annotation):
        extra = part.extra_json_schema if isinstance(part, msgspec.Meta) else None
        if extra and "minimum" in extra:
            return Range(extra["minimum"], extra["maximum"])
        if (found := range_of(part)) is not None:
            return found
    return None


def hint_for(kind: Any, message: str) -> str:
    """A hint that completes msgspec's ``message`` about a struct ``kind``."""
    found = _PLACE.search(message)
    names = found[1].split(".")[1:] if found else []
    annotation = kind
    for name in names:
        owner = _struct_in(annotation)
        if owner is None:
            return _SCHEMA
        types = {field.encode_name: field.type for field in msgspec.structs.fields(owner)}
        annotation = types.get(name)
    return _hint_at(names[-1] if names else "", annotation, message)


def _hint_at(name: str, annotation: Any, message: str) -> str:
    if "unknown field" in message and (owner := _struct_in(annotation)) is not None:
        return f"known: {', '.join(field.encode_name for field in msgspec.structs.fields(owner))}"
    if (allowed := range_of(annotation)) is not None:
        return allowed.hint(name)
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, Enum):
            return f"{name} is one of {', '.join(str(word.value) for word in member)}"
    return _SCHEMA


def _struct_in(annotation: Any) -> type[msgspec.Struct] | None:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            return member
    return None


def _members(annotation: Any) -> tuple[Any, ...]:
    """Members of a union, or the annotation itself."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    return get_args(annotation) or (annotation,)
