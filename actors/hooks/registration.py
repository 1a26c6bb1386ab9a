"""Rules for registrations of hooks, beyond the contract's for a single spec. Pure.

A point that nothing calls is refused: its guard would guard nothing. At the two points of a call
that is about to be made, a hook either changes or judges, and changers come first, so that a judge
sees what is executed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from rookery.actors.hooks.executors.rule import check_condition
from rookery.schemas.errors import Refused
from rookery.schemas.hooks import (
    HOOKS_MAX,
    HookRegistration,
    HttpHook,
    NatsHook,
    PythonHook,
    RuleHook,
)
from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.hook import HookPoint, HookResponseClass
from rookery.schemas.seed.hook_spec import HookSpec

__all__ = ["POINT_TIMEOUT_MS_MAX", "check_registration", "check_registrations"]

POINT_HOOKS_MAX: Final = 32
TIMEOUT_MS_MAX: Final = 30_000
POINT_TIMEOUT_MS_MAX: Final = 5_000

_HOOK_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_SERVED_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,41}")
"""Credentials are named by it."""
_URL: Final = re.compile(r"https?://[^\s/]")
_FUNCTION: Final = re.compile(r"[\w.<>]{1,256}")

_MODEL: Final = "no model driver calls it yet"
_NOT_APPLIED: Final = {
    HookPoint.BEFORE_MODEL_CALL: (
        HookResponseClass.MODIFY_PROJECTION,
        HookResponseClass.REQUEST_APPROVAL,
    ),
    HookPoint.AFTER_MODEL_CALL: (HookResponseClass.REQUEST_RETRY,),
}
"""Rights that the contract allows at a point, and that no driver of models can serve."""
_AGENTS: Final = "agents are no tools yet"
_PROCESSES: Final = "no run starts processes yet"
_OBSERVED: Final = frozenset(
    {
        HookPoint.AFTER_TOOL_CALL,
        HookPoint.AFTER_MODEL_CALL,
        HookPoint.AFTER_APPROVAL_DECISION,
        HookPoint.AFTER_RUN_TERMINAL,
    }
)
"""The points that committed facts feed to observers."""
_WAITED_FOR: Final = frozenset({HookPoint.AFTER_TOOL_CALL, HookPoint.AFTER_MODEL_CALL})
_NOT_LIVE: Final = {
    HookPoint.BEFORE_CONTEXT_ASSEMBLY: _MODEL,
    HookPoint.AFTER_CONTEXT_ASSEMBLY: _MODEL,
    HookPoint.BEFORE_PROVIDER_PROJECTION: _MODEL,
    HookPoint.ON_MODEL_DELTA: _MODEL,
    HookPoint.BEFORE_STRUCTURED_OUTPUT_VALIDATION: _MODEL,
    HookPoint.AFTER_STRUCTURED_OUTPUT_VALIDATION: _MODEL,
    HookPoint.BEFORE_SUBAGENT_START: _AGENTS,
    HookPoint.AFTER_SUBAGENT_TERMINAL: _AGENTS,
    HookPoint.BEFORE_ISOLATION_PROCESS_START: _PROCESSES,
    HookPoint.AFTER_ISOLATION_PROCESS_EXIT: _PROCESSES,
    HookPoint.BEFORE_COMPACTION: _MODEL,
    HookPoint.AFTER_COMPACTION: _MODEL,
}
_CHANGE: Final = {
    HookPoint.BEFORE_TOOL_CALL: HookResponseClass.MODIFY_TOOL_REQUEST,
    HookPoint.BEFORE_APPROVAL_REQUEST: HookResponseClass.MODIFY_APPROVAL_REQUEST,
}
"""The right of a changer, at the points where changers come before judges."""
_JUDGEMENTS: Final = (HookResponseClass.DENY, HookResponseClass.REQUEST_APPROVAL)


def check_registration(
    registration: HookRegistration,
    others: Collection[HookRegistration] = (),
    *,
    point_timeout_ms_max: int = POINT_TIMEOUT_MS_MAX,
) -> HookRegistration:
    """The registration, if it may be added to the others; one of the same id is replaced. Raises
    ``HOOK_INVALID``, ``HOOK_POINT_NOT_LIVE`` or ``RULE_INVALID``."""
    spec = registration.spec
    try:
        spec.validate()
    except AgentError as error:
        raise _invalid(spec, "contract", error.context.message) from None
    _check_spec(spec)
    _check_point(spec)
    _check_executor(registration)
    check_condition(registration)
    beside = [one.spec for one in others if one.spec.hook_id != spec.hook_id]
    _check_counts(spec, beside, point_timeout_ms_max)
    _check_order(spec, beside)
    return registration


def check_registrations(registrations: Sequence[HookRegistration]) -> None:
    """Raise if one of a list may not be beside those before it, or two have one id."""
    for number, registration in enumerate(registrations):
        before = registrations[:number]
        if any(one.spec.hook_id == registration.spec.hook_id for one in before):
            raise _invalid(registration.spec, "id", "another hook has the same id")
        check_registration(registration, before)


def _check_spec(spec: HookSpec) -> None:
    if not _HOOK_ID.fullmatch(spec.hook_id.as_str()):
        raise _invalid(spec, "id", "an id is [a-z0-9][a-z0-9._-]* of at most 63 characters")
    if spec.timeout.timeout_ms > TIMEOUT_MS_MAX:
        raise _invalid(spec, "timeout", f"timeout_ms is at most {TIMEOUT_MS_MAX}")


def _check_point(spec: HookSpec) -> None:
    point, reason = spec.point, _NOT_LIVE.get(spec.point, "")
    if not reason and not spec.is_blocking and point not in _OBSERVED:
        reason = "no fact feeds an observer of it: the run can wait for the hook, in mode audit"
    if spec.is_blocking and point in _OBSERVED - _WAITED_FOR:
        reason = "nothing waits for a hook of this point: give it a queue"
    refused = [one for one in _NOT_APPLIED.get(point, ()) if one in spec.mutation_rights.rights]
    if refused:
        reason = f"the driver of models serves no {refused[0]} yet"
    if HookResponseClass.VALIDATE_DETACH in spec.mutation_rights.rights:
        reason = "no run is detached yet"
    if not spec.is_blocking and point.is_security_critical:
        reason = "the run waits for every hook of this point, so none is non-blocking"
    if reason:
        text = f"hook {spec.hook_id.as_str()[:80]}: {point} is not live: {reason}"
        raise Refused("HOOK_POINT_NOT_LIVE", text)


def _check_executor(registration: HookRegistration) -> None:
    spec, executor = registration.spec, registration.executor
    if spec.is_security_relevant and not registration.mode:
        raise _invalid(spec, "mode", "say mode: enforce, audit or off")
    if spec.executor_ref.as_str() != (ref := registration.executor_ref()):
        raise _invalid(spec, "executor", f"executor_ref of this executor is {ref}")
    if isinstance(executor, PythonHook) and not _FUNCTION.fullmatch(executor.function):
        raise _invalid(spec, "executor", "function is <module>.<name>")
    if isinstance(executor, HttpHook) and not _URL.match(executor.url):
        raise _invalid(spec, "executor", "the url begins with https:// or http://")
    if isinstance(executor, NatsHook) and not _SERVED_ID.fullmatch(spec.hook_id.as_str()):
        raise _invalid(spec, "executor", f"the id of a hook of this kind is {_SERVED_ID.pattern}")
    if isinstance(executor, RuleHook):
        if not registration.when:
            raise _invalid(spec, "executor", "a rule needs a condition in when")
        if not spec.mutation_rights.allows_response_class(executor.response_class):
            raise _invalid(spec, "executor", f"its rights lack {executor.response_class}")


def _check_counts(spec: HookSpec, beside: Sequence[HookSpec], timeout_ms_max: int) -> None:
    if len(beside) >= HOOKS_MAX:
        raise _invalid(spec, "count", f"a realm has at most {HOOKS_MAX} hooks")
    of_point = [one for one in beside if one.point is spec.point]
    if len(of_point) >= POINT_HOOKS_MAX:
        raise _invalid(spec, "count", f"a point has at most {POINT_HOOKS_MAX} hooks")
    waited = sum(one.timeout.timeout_ms for one in (spec, *of_point) if one.is_blocking)
    if waited > timeout_ms_max:
        text = f"the blocking hooks of {spec.point} may take {waited} ms together"
        raise _invalid(spec, "timeout", f"{text}, {timeout_ms_max} are the limit")


def _check_order(spec: HookSpec, beside: Sequence[HookSpec]) -> None:
    change = _CHANGE.get(spec.point)
    if change is None:
        return
    if _judges(spec) and change in spec.mutation_rights.rights:
        text = f"a hook either holds {change} or judges: register two with one executor"
        raise _invalid(spec, "order", text)
    for one in beside:
        if one.point is not spec.point:
            continue
        first, last = sorted((spec, one), key=HookSpec.sort_key)
        if _judges(first) and change in last.mutation_rights.rights:
            text = f"{last.hook_id.as_str()} changes what {first.hook_id.as_str()} has judged"
            raise _invalid(spec, "order", f"{text}: give the changer an earlier phase or order")


def _judges(spec: HookSpec) -> bool:
    return any(right in _JUDGEMENTS for right in spec.mutation_rights.rights)


def _invalid(spec: HookSpec, rule: str, reason: str) -> Refused:
    return Refused("HOOK_INVALID", f"hook {spec.hook_id.as_str()[:80]}: {rule}: {reason}")
