"""The words for a run's facts, for its timeline; and journal messages as lines, one for each fact.

Lines for people leave out the fields that all facts share, and have words for facts of leases and
surfaces; JSON lines have every field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from rookery.bus.ports import StoredMessage
from rookery.ops.cli.output import clock_time
from rookery.schemas.calls import LEASE_REAUTH_REQUIRED
from rookery.schemas.codec import fact_name
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import (
    approval,
    code,
    conversation,
    hook,
    lease,
    model,
    session,
    tool,
    turn,
)
from rookery.schemas.facts.run_progress import SESSION_ENDS, TURN_ENDS
from rookery.schemas.surfaces import SurfaceKind

__all__ = [
    "LANES",
    "LEASE_WORDS",
    "Names",
    "RunFact",
    "fact_words",
    "facts_of_run",
    "note_words",
    "registration_words",
    "response_words",
    "unparked_words",
]

# --- words of hooks -------------------------------------------------------------------------------

# The words for what hooks answer, and for their registrations, for lines of people.


FactFields = dict[str, Any]


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


LANES: Final = {
    "session": "admission",
    "turn": "turns",
    "tool": "tools",
    "hook": "tools",
    "model": "turns",
    "code": "turns",
    "conversation": "turns",
    "approval": "approvals",
    "sandbox": "sandbox",
}
"""By family; hooks are in the lane of the calls that they judge, models in that of turns."""


class RunFact(NamedTuple):
    """A fact of a run; ``kind`` is its wire name without the version."""

    position: str
    """``<sequence>.<n>``"""
    kind: str
    at_ms: int
    fields: FactFields

    @property
    def lane(self) -> str:
        return LANES[self.kind.partition(".")[0]]


_TURN_ENDS: Final = frozenset(map(fact_name, TURN_ENDS))
_SESSION_ENDS: Final = frozenset(map(fact_name, SESSION_ENDS))


def facts_of_run(run_id: str, messages: Iterable[StoredMessage]) -> list[RunFact]:
    """The run's facts among these messages, in order, without the session's record of an end that
    the turn has."""
    found: list[RunFact] = []
    has_end = False
    for stored in messages:
        body = msgspec.json.decode(stored.body)
        for number, fact in enumerate(body if isinstance(body, list) else [], 1):
            if stored.entity.family in LANES and fact.get("run") == run_id:
                kind = fact["type"].rpartition(".")[0]
                if has_end and kind in _SESSION_ENDS:
                    continue
                has_end |= kind in _TURN_ENDS
                found.append(RunFact(f"{stored.sequence}.{number}", kind, fact["at_ms"], fact))
    return found


class Names:
    """The displayed names of a run's calls: tool, number, and surface unless it is the node's."""

    def __init__(self, facts: Iterable[RunFact]) -> None:
        self._names: dict[str, str] = {}
        self._surfaces: dict[str, str] = {}
        for fact in facts:
            for call in (*fact.fields.get("calls", ()), fact.fields):
                if "operation_id" in call and "number" in call:
                    name, surface = (
                        f"{call['name']} #{call['number']}",
                        call.get("surface", SurfaceKind.LOCAL),
                    )
                    if surface != SurfaceKind.LOCAL:
                        name = f"{name} of {surface}"
                        self._surfaces[call["operation_id"]] = surface
                    if len(name) >= len(self._names.get(call["operation_id"], "")):
                        self._names[call["operation_id"]] = name

    def of(self, operation_id: str) -> str:
        return self._names.get(operation_id, operation_id)

    @property
    def surfaces(self) -> list[str]:
        """The surfaces of the calls, beside the node itself, in the order of their first one."""
        return list(dict.fromkeys(self._surfaces.values()))

    def surface_of(self, operation_id: str) -> str:
        """Empty for the node itself."""
        return self._surfaces.get(operation_id, "")


def fact_words(fact: RunFact, names: Names) -> str:
    """A fact in a few words."""
    fields = fact.fields
    call = names.of(fields["operation_id"]) if fields.get("operation_id") else "the run"
    if (call_words := _CALL_WORDS.get(fact.kind)) is not None:
        return call_words(call, fields)
    if fact.kind.startswith("tool."):
        return _of_call(call, fields)
    if fact.kind == _CALLS_RETURNED:
        calls = [names.of(call["operation_id"]) for call in fields.get("calls", ())]
        return f"wants {', '.join(calls) or fields.get('tool_count', 'calls')}"
    if (words := _WORDS.get(fact.kind)) is not None:
        return words(fields)
    return _and(_plain(fact.kind), _error(fields))


def _of_call(call: str, fields: FactFields) -> str:
    return _and(f"{call} {_plain(fields['type'].rpartition('.')[0])}", _error(fields))


def _plain(kind: str) -> str:
    return kind.partition(".")[2].replace("_", " ")


def _and(what: str, more: Any) -> str:
    return f"{what}: {more}" if more else what


def _by(fields: FactFields) -> str:
    return f", says {fields['resolved_by']}" if fields.get("resolved_by") else ""


def _counted(operations: Any) -> str:
    return "1 call" if len(operations) == 1 else f"{len(operations)} calls"


def _error(fields: FactFields) -> str:
    """The error of a fact: text, or an object with a code."""
    error = fields.get("error")
    if isinstance(error, dict):
        return f"{error.get('code')}: {error.get('message')}"
    return " ".join(str(error or "").split())


def _accepted(fields: FactFields) -> str:
    mode, source = fields.get("mode", "queue"), fields.get("input_source")
    words = "accepted" if source is None else f"accepted from {source}"
    return words if mode == "queue" else f"{words}, mode {mode}"


def _model_requested(fields: FactFields) -> str:
    asked = f"step {fields['step']}: {fields['model']} is asked, {fields['messages']} messages"
    return f"{asked}, as an answer was lost" if fields.get("repeats") else asked


def _model_answered(fields: FactFields) -> str:
    usage = fields.get("usage", {})
    tokens = f"{usage.get('input_tokens', 0):,} > {usage.get('output_tokens', 0):,} tokens"
    words = f"step {fields['step']}: answered after {fields['duration_ms']} ms, {tokens}"
    return f"{words}, ${usage['cost_micro_usd'] / 1e6:.4f}" if usage.get("priced") else words


def _model_failed(fields: FactFields) -> str:
    words = f"step {fields['step']}: no answer: {fields['code']}: {fields['message']}"
    plan = fields.get("plan")
    return f"{words}; asked again in {plan['selected_delay_ms'] / 1_000:g} s" if plan else words


def _to_end(fields: FactFields) -> str:
    when = "now" if fields.get("now") else "at its next boundary"
    return _and(f"must end {when}", fields.get("reason"))


def _requested(call: str, fields: FactFields) -> str:
    return f"{call} requested" + (", waits for a slot" if fields.get("waits") else "")


def _completed(call: str, fields: FactFields) -> str:
    """A call that was awaited has no duration."""
    after = f" after {fields['duration_ms']} ms" if fields["duration_ms"] else ""
    return f"{call} answered{after}{_by(fields)}"


def _awaited(call: str, fields: FactFields) -> str:
    if "task" in fields:
        return f"{call} goes on as task {fields['task']}"
    until_ms = fields.get("until_ms")
    until = "" if until_ms is None else f" until {clock_time(until_ms)}"
    if "lease" not in fields:
        return f"{call} waits{until}: {fields['code']}"
    if fields["code"] == LEASE_REAUTH_REQUIRED:
        return f"{call} waits for a login: rookery leases login {fields['lease']}"
    return f"{call} waits for a fresh credential of {fields['lease']}"


def _answered(call: str, fields: FactFields) -> str:
    verified = "verified" if fields.get("verified") else "unverified"
    decision = fields["decision"].replace("_", " ")
    return _and(f"{call} {decision} by {fields['actor']}, {verified}", fields.get("reason"))


def _allowed(call: str, fields: FactFields) -> str:
    grant = fields.get("session_grant_id")
    return f"{call} allowed by " + (f"grant {grant}" if grant else f"its rule {fields.get('rule')}")


def _may_act_words(fields: FactFields) -> str:
    """Until when the tool could still act, if that is later than the fact."""
    until_ms = fields.get("may_act_until_ms", 0)
    return f"; it may act until {clock_time(until_ms)}" if until_ms > fields["at_ms"] else ""


def _until(seconds: int | None) -> str:
    return "which never expires" if seconds is None else f"until {clock_time(seconds * 1_000)}"


def _again(fields: FactFields) -> str:
    is_again = fields.get("again") is True
    return " with a refresh token that may be used up, for an operator" if is_again else ""


def _retry(fields: FactFields) -> str:
    at_ms = fields.get("retry_at_ms")
    when = f"; next attempt at {clock_time(at_ms)}" if at_ms else ""
    return _and("got no credential", fields.get("reason")) + when


def _login_needed(fields: FactFields) -> str:
    login = f"needs a login: rookery leases login {fields['session']}"
    return f"{login} ({fields['reason']})" if fields.get("reason") else login


def _released(fields: FactFields) -> str:
    logins = len(fields.get("flow_ids", ()))
    return f"released, and {logins} logins ended" if logins else "released"


def _call_waits(fields: FactFields) -> str:
    fresh = ", it is fresh" if fields.get("is_fresh") else ""
    return f"a call of session {fields['call_session']} waits for the credential{fresh}"


def _calls_end(fields: FactFields) -> str:
    count = len(fields["operation_ids"])
    return "1 call waits no more" if count == 1 else f"{count} calls wait no more"


_Words = Callable[[FactFields], str]
_CallWords = Callable[[str, FactFields], str]
_OF_OTHERS: Final[Mapping[type[Fact], _Words]] = {
    session.InputAccepted: _accepted,
    session.RunPrepared: lambda _: "has the session",
    session.QueuedRunDrained: lambda _: "has the session",
    session.RunCommitted: lambda _: "committed, the session is free",
    session.RunFailed: lambda _: "failed, the session is free",
    session.RunRolledBack: lambda _: "rolled back, the session is free",
    session.BoundaryCancelRequested: _to_end,
    session.InputCancelled: lambda fields: _and("withdrawn", fields.get("reason")),
    turn.OpsRegistered: lambda fields: f"waits for {_counted(fields['barrier_ids'])}",
    turn.OpsBarrierSatisfied: lambda fields: f"{_counted(fields['operation_ids'])} answered",
    turn.Parked: lambda fields: f"parked: {fields['code']}",
    turn.Unparked: unparked_words,
    code.Stepped: lambda fields: f"the model's program waits for {_counted(fields['barrier_ids'])}",
    code.Ended: lambda fields: (
        f"the model's program has ended, with {_counted(fields.get('calls', ()))}"
    ),
    conversation.MessageAdded: lambda fields: f"message {fields['index']} of the conversation",
    conversation.Compacted: lambda fields: (
        f"{fields['messages']} messages of the conversation are replaced: about "
        f"{fields['tokens_before']:,} > {fields['tokens_after']:,} tokens"
    ),
    model.Requested: _model_requested,
    model.Answered: _model_answered,
    model.Failed: _model_failed,
    hook.Registered: registration_words,
    hook.ModeSet: lambda fields: f"hook {fields['hook_id']} is in mode {fields['mode']} now",
    hook.Removed: lambda fields: f"hook {fields['hook_id']} is removed",
    model.JobStarted: lambda fields: f"step {fields['step']}: the provider has job {fields['job']}",
    model.Lost: lambda fields: f"step {fields['step']}: the answer was lost with {fields['node']}",
}
_OF_CALLS: Final[Mapping[type[Fact], _CallWords]] = {
    tool.Requested: _requested,
    tool.Awaited: _awaited,
    tool.CredentialReady: lambda call, _: f"{call} has its credential",
    tool.IntentRecorded: lambda call, fields: f"{call} is called, attempt {fields['attempt']}",
    tool.Completed: _completed,
    tool.Failed: lambda call, fields: f"{call} failed: {_error(fields)}{_by(fields)}",
    tool.RecoveryRequired: lambda call, fields: (
        f"{call} may have acted, its outcome is unknown: {fields['reason']}{_may_act_words(fields)}"
    ),
    tool.RetryAllowed: lambda call, fields: f"{call} will be tried again{_by(fields)}",
    hook.ResponseDecided: lambda call, fields: (
        f"hook {fields['hook_id']} of {call}: {response_words(fields['change'])}"
    ),
    hook.MutationIntended: lambda call, fields: f"hook {fields['hook_id']} changes {call}",
    hook.MutationResulted: lambda call, fields: f"hook {fields['hook_id']} has changed {call}",
    hook.ResponseRejected: lambda call, fields: (
        f"hook {fields['hook_id']} of {call} wanted what it may not: {fields['reason']}"
    ),
    hook.Noted: lambda call, fields: f"hook {fields['hook_id']} of {call} {note_words(fields)}",
    approval.Requested: lambda call, fields: _and(f"{call} needs approval", fields.get("why")),
    approval.DispatchIntended: lambda call, fields: (
        f"{call} was sent to {', '.join(fields['dispatchers'])}"
    ),
    approval.Dispatched: lambda call, fields: f"{fields['dispatcher']} has the request for {call}",
    approval.Escalated: lambda call, fields: (
        f"{call} was sent to {', '.join(fields['dispatchers'])}, too"
    ),
    approval.Answered: _answered,
    approval.AnswerRefused: lambda call, fields: (
        f"the answer of {fields['actor'] or 'an unknown actor'} to {call} does not count: "
        f"{fields['code']}"
    ),
    approval.Closed: lambda call, fields: f"{call} is not allowed: {fields['reason_code']}",
    approval.AutoAllowed: _allowed,
    approval.GrantIssued: lambda call, _: f"{call} is allowed once",
    approval.GrantConsumed: lambda call, _: f"{call} has used its grant",
}
_OF_LEASES: Final[Mapping[type[Fact], _Words]] = {
    lease.Acquired: lambda fields: f"has a credential, {_until(fields.get('expires_at_ts'))}",
    lease.RefreshCompleted: lambda fields: f"renewed, {_until(fields.get('new_expires_at'))}",
    lease.ExpiringMarked: lambda _: "expires soon",
    lease.RefreshBegun: lambda fields: "begins a refresh" + _again(fields),
    lease.AcquisitionBegun: lambda fields: "begins to get a credential" + _again(fields),
    lease.RefreshIntended: lambda fields: f"{fields['node']} asks the provider",
    lease.RefreshFailedTransient: _retry,
    lease.AcquisitionFailed: lambda fields: (
        _retry(fields) if fields.get("retry_at_ms") else _login_needed(fields)
    ),
    lease.RefreshFailedPermanent: _login_needed,
    lease.ReauthRequired: _login_needed,
    lease.CredentialRejected: lambda _: "a service refused the credential",
    lease.CredentialCleared: lambda _: "the credential is deleted, logins continue",
    lease.WaitBegun: _call_waits,
    lease.WaitsEnded: _calls_end,
    lease.BrowserFlowAdmitted: lambda _: "a login by browser begins",
    lease.DeviceFlowAdmitted: lambda _: "a login by device code begins",
    lease.BrowserFlowExpired: lambda _: "the login by browser ended",
    lease.DeviceFlowExpired: lambda _: "the login by device code ended",
    lease.Released: _released,
    lease.ReleaseUndone: lambda _: "the release is undone",
}
"""Of the facts that nodes leave; those of clients' inputs alone are shown by their fields."""
LEASE_WORDS: Final = {fact_name(kind): words for kind, words in _OF_LEASES.items()}
_WORDS: Final = {fact_name(kind): words for kind, words in _OF_OTHERS.items()}
_CALL_WORDS: Final = {fact_name(kind): words for kind, words in _OF_CALLS.items()}
_CALLS_RETURNED: Final = fact_name(turn.ToolCallsReturned)
