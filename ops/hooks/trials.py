"""The calls that a hook can be tried with: those of recorded runs, or one that is typed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from rookery.bus.ports import StoredMessage
from rookery.schemas.calls import CallArguments, CallOutcome, RequestedCall
from rookery.schemas.codec import FactCodec
from rookery.schemas.digest import digest_json
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import tool, turn
from rookery.schemas.hooks import TriedCall

__all__ = ["recorded_calls", "typed_call"]

_CODEC: FactCodec[Any] = FactCodec(turn.RUN_FACTS)


def recorded_calls(messages: Iterable[StoredMessage], run_id: str) -> Iterator[TriedCall]:
    """The calls of a run as its program requested them, with their values. Messages that cannot be
    read are skipped."""
    calls: dict[str, RequestedCall] = {}
    outcomes: dict[str, CallOutcome] = {}
    session = ""
    for stored in messages:
        if stored.entity.family != "turn":
            continue
        try:
            facts = _CODEC.decode(stored.body)
        except CodedError:
            continue
        session = stored.entity.key
        for fact in facts:
            if fact.run != run_id:
                continue
            match fact:
                case turn.ToolCallsReturned(calls=requested):
                    calls |= {call.operation_id: call for call in requested}
                case tool.Requested(operation_id=name) if name in calls:
                    calls[name] = _with_arguments(calls[name], fact)
                case tool.Completed(value=value, value_blob=blob, sealed=sealed):
                    outcome = CallOutcome(value=value, value_blob=blob, sealed=sealed)
                    outcomes[fact.operation_id] = outcome
    for name, call in calls.items():
        value = outcomes.get(name) or UNSET
        yield TriedCall(session=session, run_id=run_id, call=call, outcome=value)


def typed_call(name: str, arguments: dict[str, Any]) -> TriedCall:
    """A call with these named arguments, of no run."""
    given = CallArguments(kwargs=arguments)
    call = RequestedCall(
        operation_id="trial.1", number=1, name=name, digest=digest_json(given), arguments=given
    )
    return TriedCall(session="trial", run_id="trial", call=call)


def _with_arguments(call: RequestedCall, requested: tool.Requested) -> RequestedCall:
    """The batch has the arguments of a call only if a hook has changed them."""
    if call.arguments is not UNSET or call.arguments_blob is not UNSET:
        return call
    return replace(call, arguments=requested.arguments, arguments_blob=requested.arguments_blob)
