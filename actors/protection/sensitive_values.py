"""Sensitive arguments and results: which a tool has, and how facts hold them.

A JSON Schema marks them with ``writeOnly``: at an argument, or anywhere inside it, or at the
result. Facts hold them sealed, programs and tools get them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from rookery.bus.ports import ValueSeal
from rookery.schemas.calls import CallArguments, Capability, ForkPoint
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused
from rookery.schemas.protection.sealed_values import (
    SealedValue,
    hidden_digest,
    read_sealed,
    wrap_sealed,
)

__all__ = [
    "NO_SEAL",
    "CallSeal",
    "SensitiveParts",
    "forked_field",
    "is_sealed",
    "redacted_summary",
    "sensitive_parts",
    "shown_arguments",
    "visible_arguments",
]

MARK: Final = "writeOnly"
NAMES_MAX: Final = 12
"""Of arguments that a summary describes."""
NOTHING_HIDDEN: Final[Mapping[str, str]] = MappingProxyType({})
_decode = msgspec.json.Decoder().decode


class SensitiveParts(NamedTuple):
    """What of a tool's calls facts do not show."""

    names: tuple[str, ...] = ()
    """The names of all its arguments, in order."""
    arguments: frozenset[str] = frozenset()
    result: bool = False

    def __bool__(self) -> bool:
        return bool(self.arguments) or self.result

    def change(self, arguments: CallArguments, changed: Callable[[str, Any], Any]) -> CallArguments:
        """The arguments of a call with each sensitive one changed."""
        hidden = self.arguments
        named = dict(enumerate(self.names))
        return CallArguments(
            args=[
                changed(named[index], value) if named.get(index) in hidden else value
                for index, value in enumerate(arguments.args)
            ],
            kwargs={
                name: changed(name, value) if name in hidden else value
                for name, value in arguments.kwargs.items()
            },
        )


def sensitive_parts(capability: Capability) -> SensitiveParts:
    """The marks in the schemas of a tool."""
    given, returned = capability.input_schema, capability.output_schema
    properties = given.get("properties") if isinstance(given, Mapping) else None
    known = properties if isinstance(properties, Mapping) else {}
    definitions = given.get("$defs", {}) if isinstance(given, Mapping) else {}
    found = frozenset(name for name, schema in known.items() if _is_marked(schema, definitions))
    own = returned.get("$defs", {}) if isinstance(returned, Mapping) else {}
    return SensitiveParts(tuple(known), found, _is_marked(returned, own))


def _is_marked(schema: Any, definitions: Any, seen: set[str] | None = None) -> bool:
    """Whether a value of the schema, or a part of it, is sensitive. ``seen``: references that were
    followed; each is once, for a few lines of them can multiply to any number of parts."""
    seen = set() if seen is None else seen
    if isinstance(schema, list):
        return any(_is_marked(one, definitions, seen) for one in schema)
    if not isinstance(schema, Mapping):
        return False
    if schema.get(MARK) is True:
        return True
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen and isinstance(definitions, Mapping):
        seen.add(reference)
        if _is_marked(definitions.get(reference.removeprefix("#/$defs/")), definitions, seen):
            return True
    inner = (one for key, one in schema.items() if key not in ("$defs", "default", "examples"))
    return any(_is_marked(one, definitions, seen) for one in inner)


class _NoSeal:
    """Of a node without a key file."""

    def seal(self, value: bytes, entity: str, field: str) -> SealedValue:
        del value, entity
        raise Refused("SEALING_KEY_MISSING", f"this node has no key to hide {field}")

    def open(self, sealed: SealedValue, entity: str, field: str) -> bytes:
        del entity
        raise Refused("SEALING_KEY_MISSING", f"this node lacks key {sealed.key_id} of {field}")


NO_SEAL: Final[ValueSeal] = _NoSeal()


class CallSeal:
    """Seals and opens the sensitive values of calls of one session."""

    def __init__(self, seal: ValueSeal, session: str) -> None:
        self._seal, self._entity = seal, f"turn/{session}"

    def seal_arguments(
        self, parts: SensitiveParts, operation_id: str, arguments: CallArguments
    ) -> CallArguments:
        def sealed(name: str, value: Any) -> Any:
            return self._sealed(value, f"{operation_id}/arguments/{name}")

        return parts.change(arguments, sealed)

    def open_arguments(
        self, parts: SensitiveParts, operation_id: str, arguments: CallArguments
    ) -> CallArguments:
        def opened(name: str, value: Any) -> Any:
            return self._opened(value, f"{operation_id}/arguments/{name}")

        return parts.change(arguments, opened)

    def seal_result(self, operation_id: str, text: bytes) -> Any:
        """What facts hold in place of a result, given as canonical JSON."""
        return wrap_sealed(self._seal.seal(text, self._entity, f"{operation_id}/result"))

    def open_result(self, operation_id: str, value: Any) -> Any:
        """The result in whose place ``value`` is."""
        return self._opened(value, f"{operation_id}/result")

    def seal_batches(self, field: str, text: bytes) -> bytes:
        """The outcomes that a fork takes over."""
        return canonical_json(wrap_sealed(self._seal.seal(text, self._entity, field)))

    def open_batches(self, field: str, data: bytes) -> bytes:
        return self._seal.open(read_sealed(_decode(data)), self._entity, field)

    def _sealed(self, value: Any, field: str) -> Any:
        return wrap_sealed(self._seal.seal(canonical_json(value), self._entity, field))

    def _opened(self, value: Any, field: str) -> Any:
        return _decode(self._seal.open(read_sealed(value), self._entity, field))


def forked_field(point: ForkPoint) -> str:
    """The field of the blob with the outcomes that a fork takes over, for its seal."""
    return f"{point.run_id}/{point.at_sequence}.{point.at_fact}/forked"


def is_sealed(batches: bytes) -> bool:
    """Whether the blob of a fork is sealed: others hold a list."""
    return batches.startswith(b"{")


def shown_arguments(parts: SensitiveParts, sealed: CallArguments) -> CallArguments:
    """Sealed arguments as an approver sees them: a sensitive one is a digest."""
    return parts.change(sealed, lambda _, value: hidden_digest(value))


def visible_arguments(bound: Any, parts: SensitiveParts) -> Any:
    """Bound arguments for a condition: a sensitive one is missing."""
    if not parts.arguments or isinstance(bound, Sequence):
        return bound
    return {name: value for name, value in bound.items() if name not in parts.arguments}


def redacted_summary(name: str, arguments: Any, hidden: Mapping[str, str] = NOTHING_HIDDEN) -> str:
    """A call without the values of its arguments; ``hidden``: the digests of sensitive ones."""
    if isinstance(arguments, Mapping):
        parts = [
            f"{key[:40]}: "
            + (f"hidden, {hidden[key][:12]}" if key in hidden else _describe_type(value))
            for key, value in arguments.items()
        ]
    else:
        parts = [_describe_type(value) for value in arguments]
    more = [f"{len(parts) - NAMES_MAX} more"] if len(parts) > NAMES_MAX else []
    return f"{name[:128]}({', '.join([*parts[:NAMES_MAX], *more])})"


def _describe_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "number"
        case str():
            return f"text of {len(value)}"
        case list() | tuple():
            return f"list of {len(value)}"
    return f"object of {len(value)}"
