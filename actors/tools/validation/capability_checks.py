"""Checks of one capability, and faults of calls as programs see them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from rookery.actors.protection.approval_rules import check_rule
from rookery.actors.protection.sensitive_values import sensitive_parts, visible_arguments
from rookery.actors.tools.validation import validator_of
from rookery.schemas.calls import (
    ApprovalMode,
    CallArguments,
    Capability,
    CapabilityLimits,
    RecordMode,
    ToolFault,
)
from rookery.schemas.codec import NESTING_MAX
from rookery.schemas.digest import canonical_json, digest_json
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.run import CallStatus

__all__ = [
    "CapabilityChecks",
    "CheckedResult",
    "bind_by_name",
    "decode_arguments",
    "fault",
    "fault_of",
    "iso_time",
    "logged_fault",
    "schema_digest",
    "status_of",
]

# --- capability checks ----------------------------------------------------------------------------

# Checks of one capability: its schemas, and the sizes of request and response.
#
# Built once per capability and used for every call, by nodes and workers. An object schema
# describes named arguments, an array schema positional ones.


_NOT_SHOWN: Final = "does not match its schema; it is sensitive, so no more is said"
_LIMIT_MAX: Final = 2**32 - 1
_decode = msgspec.json.Decoder().decode


class CheckedResult(NamedTuple):
    """A valid result."""

    value: Any
    """Plain JSON."""
    text: bytes
    """Its canonical JSON; the response digest covers this."""


class CapabilityChecks:
    """The checks of one capability; refuses an invalid capability."""

    def __init__(self, capability: Capability) -> None:
        _check_limits(capability)
        _check_record(capability)
        check_rule(capability)
        self._name = capability.name
        self.sensitive = sensitive_parts(capability)
        """What facts do not show."""
        self._limits = capability.limits
        self._names = _names_in_order(capability)
        self._input = validator_of(
            capability.input_schema, f"the input schema of {capability.name}"
        )
        self._output = validator_of(
            capability.output_schema, f"the output schema of {capability.name}"
        )

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Check the arguments and return what the input schema describes: a dict of the bound
        arguments, or a list.

        ``TYPE_ERROR`` if the shape of the call is wrong, ``INVALID_ARGUMENT`` if a value is out of
        range, like Python's ``TypeError`` and ``ValueError``.
        """
        bound = self.bind(args, kwargs)
        if wrong := self._input.find_mismatch(bound):
            code = "TYPE_ERROR" if wrong.of_shape else "INVALID_ARGUMENT"
            text = _NOT_SHOWN if self.sensitive.arguments else str(wrong)
            raise Refused(code, f"{self._name}: {text}", hint=self._usage())
        return bound

    def encode_request(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """The canonical JSON of a call, within its limit; the request digest covers this."""
        try:
            text = canonical_json({"args": args, "kwargs": kwargs})
        except Refused as refusal:
            raise Refused("INVALID_ARGUMENT", f"{self._name}: {refusal.message}") from None
        if len(text) > self._limits.max_request_bytes:
            raise Refused(
                "PAYLOAD_TOO_LARGE",
                f"{self._name}: the arguments have {len(text)} bytes, "
                f"the limit is {self._limits.max_request_bytes}",
                hint="pass large values by reference, or in parts",
            )
        if _is_too_deep(text):
            raise Refused("INVALID_ARGUMENT", f"{self._name}: the arguments are {_TOO_DEEP}")
        return text

    def check_result(self, result: Any) -> CheckedResult:
        """A result as plain JSON of the declared size and schema; any other result is the tool's
        failure."""
        try:
            text = canonical_json(result)
        except Refused as refusal:
            why = _NOT_SHOWN if self.sensitive.result else refusal.message
            raise Failed("SERIALIZE_ERROR", f"{self._name}: {why}") from None
        if len(text) > self._limits.max_response_bytes:
            raise Failed(
                "PAYLOAD_TOO_LARGE",
                f"{self._name}: the result has {len(text)} bytes, "
                f"the limit is {self._limits.max_response_bytes}",
            )
        if _is_too_deep(text):
            raise Failed("SERIALIZE_ERROR", f"{self._name}: the result is {_TOO_DEEP}")
        value = _decode(text)
        if wrong := self._output.find_mismatch(value):
            where = _NOT_SHOWN if self.sensitive.result else f"at {wrong}"
            raise Failed("INVALID_RESULT", f"the result of {self._name} {where}")
        return CheckedResult(value, text)

    def visible(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The arguments as ``bind`` names them, without sensitive ones."""
        return visible_arguments(self.bind(args, kwargs), self.sensitive)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A dict of the arguments by name, or a list, unchecked."""
        if self._names is not None:
            return bind_by_name(self._name, self._names, args, kwargs)
        if kwargs:
            raise Refused("TYPE_ERROR", f"{self._name} takes positional arguments only")
        return list(args)

    def _usage(self) -> str:
        return "" if self._names is None else f"{self._name}({', '.join(self._names)})"


def bind_by_name(
    tool: str, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """All arguments by name; positional ones take the names in order."""
    if len(args) > len(names):
        raise Refused("TYPE_ERROR", f"{tool} takes {len(names)} arguments, given {len(args)}")
    bound = dict(zip(names, args, strict=False))
    if twice := sorted(bound.keys() & kwargs):
        raise Refused("TYPE_ERROR", f"{tool} is given $.{twice[0]} by position and by name")
    return bound | dict(kwargs)


def schema_digest(capability: Capability) -> str:
    """The digest of the schemas that programs rely on, independent of the tool's name and code.

    The order of properties matters, because positional arguments are bound by it.
    """
    order = _names_in_order(capability)
    return digest_json(
        {"input": capability.input_schema, "output": capability.output_schema, "order": order}
    )


# --- what a capability declares -------------------------------------------------------------------


def _names_in_order(capability: Capability) -> tuple[str, ...] | None:
    """The names of the properties; none for positional arguments."""
    match capability.input_schema:
        case {"type": "object", **rest}:
            properties = rest.get("properties")
            return tuple(properties) if isinstance(properties, dict) else ()
        case {"type": "array"}:
            return None
        case _:
            raise Refused(
                "INVALID_ARGUMENT",
                f"the input schema of {capability.name[:80]} describes no arguments",
                hint='say {"type": "object"} for named ones or {"type": "array"} for positional',
            )


def _check_record(capability: Capability) -> None:
    if capability.record is not RecordMode.AFTER or is_harmless(capability):
        return
    raise Refused(
        "INVALID_ARGUMENT",
        f"calls of {capability.name[:80]} cannot be recorded after they are made",
        hint="that is for tools with side effect none or read, idempotent, without approval",
    )


def is_harmless(capability: Capability) -> bool:
    """Whether it does no harm to repeat a call of which no record exists."""
    return (
        capability.only_reads
        and capability.idempotent
        and capability.approval_policy is ApprovalMode.NONE
    )


def _check_limits(capability: Capability) -> None:
    for name in CapabilityLimits.__struct_fields__:
        value = getattr(capability.limits, name)
        if value is None and name == "rate_per_min":
            continue
        if type(value) is not int or not 1 <= value <= _LIMIT_MAX:
            raise Refused(
                "INVALID_ARGUMENT",
                f"{name} of {capability.name[:80]} is {value!r}, not from 1 to {_LIMIT_MAX}",
            )


# --- nesting --------------------------------------------------------------------------------------

_TOO_DEEP: Final = f"nested deeper than {NESTING_MAX} levels"


def _is_too_deep(text: bytes) -> bool:
    """Whether decoding the value could reach the recursion limit."""
    if text.count(b"[") + text.count(b"{") <= NESTING_MAX:
        return False
    try:
        level = [_decode(text)]
    except RecursionError:
        return True
    for _ in range(NESTING_MAX):
        level = [inner for value in level for inner in _children(value)]
    return any(isinstance(value, dict | list) for value in level)


def _children(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case _:
            return ()


# --- faults ---------------------------------------------------------------------------------------

# Faults of calls as programs see them, within the limits of storage.
#
# A call passes its checks in this order before its intent: the tool is visible; the arguments are
# bound and match the schema; their size; then permission, for which a capability can only require
# an approval so far. Where approvals are not decided the call is denied.


log = logging.getLogger(__name__)

CODE_MAX: Final = 100
TRACEBACK_MAX: Final = 20_000
MESSAGE_MAX: Final = 4_000
"""Characters of a tool's failure in facts and for the program."""
_TIME_MAX_MS: Final = 253_402_300_799_000
"""A timeout may be any number; ISO times end here."""


# --- faults ---------------------------------------------------------------------------------------


def fault(code: str, message: str) -> ToolFault:
    """A fault whose texts can be stored."""
    return ToolFault(_storable_text(code, CODE_MAX), _storable_text(message, MESSAGE_MAX))


def fault_of(error: CodedError) -> ToolFault:
    """The fault of a refusal or a failure."""
    hint = f" ({error.hint})" if error.hint else ""
    return fault(error.code, f"{error.message}{hint}")


def logged_fault(name: str, call_id: str, error: BaseException, *, sensitive: bool) -> ToolFault:
    """The fault of an exception that the tool did not raise for its callers. Its text may hold
    anything, so only the log gets it; if the tool has sensitive values, not even that."""
    lines = _frames(error) if sensitive else traceback.format_exception(error)
    text = "\n".join(line.rstrip() for line in lines)[-TRACEBACK_MAX:]
    log.error("tool failed", extra={"tool": name, "call_id": call_id, "traceback": text})
    where = f"see call {call_id} in the log of its node or worker"
    return fault("TOOL_ERROR", f"{name} failed: {where}")


def _frames(error: BaseException) -> list[str]:
    """The types and lines of an exception and its causes, without their texts."""
    lines: list[str] = []
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        lines += traceback.format_tb(found.__traceback__)
        lines.append(f"{type(found).__name__}, whose text may be sensitive")
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return lines


def status_of(wrong: ToolFault) -> CallStatus:
    """The fault's status in the record of the call."""
    match wrong.code:
        case "PERMISSION_DENIED":
            return CallStatus.DENIED
        case "TIMEOUT_TOOL":
            return CallStatus.TIMEOUT
        case _:
            return CallStatus.ERROR


def decode_arguments(data: bytes) -> CallArguments:
    """The arguments of a call, from the blob store."""
    try:
        return msgspec.json.decode(data, type=CallArguments)
    except msgspec.DecodeError as error:
        raise Refused("INVALID_ARGUMENT", f"the blob holds no arguments: {error}") from None


def _storable_text(value: object, length_max: int) -> str:
    return str(value)[:length_max].encode("utf-8", "replace").decode()


def iso_time(at_ms: int) -> str:
    """A time in a text for people."""
    at_s = min(at_ms, _TIME_MAX_MS) / 1_000
    return datetime.fromtimestamp(at_s, UTC).isoformat(" ", "milliseconds")
