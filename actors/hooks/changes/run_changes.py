"""Changes of a run by hooks: of its inputs, of its end, and of what is left behind. Pure.

The executor of a run and the decider of its turn derive the same from the same facts, so that a
turn applies only what is on record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from keyword import iskeyword
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.hooks.changes.call_changes import refusal_of_reason, refusal_of_summary
from rookery.schemas.agents import ConversationMessage
from rookery.schemas.calls import is_python_identifier
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused
from rookery.schemas.facts import hook as facts
from rookery.schemas.facts import model
from rookery.schemas.run import RunRequest, RunResult
from rookery.schemas.seed.hook import HookPoint
from rookery.schemas.seed.hook_invocation import (
    INJECTIONS_MAX,
    INJECTIONS_SIZE_MAX,
    ContextInjectionRequest,
    HookResponse,
    InjectContextResponse,
    RequestCleanupRepairResponse,
    RequestRetryResponse,
    StopCompletionWithRepairNeededResponse,
    StopRunResponse,
)

__all__ = [
    "ModelStep",
    "RunBeginning",
    "RunCancel",
    "RunCompletion",
    "check_recorded",
    "injected_inputs",
    "run_ending",
]


class RunBeginning(NamedTuple):
    """A run before its first step, with the inputs that hooks have added so far."""

    request: RunRequest
    point: HookPoint = HookPoint.RUN_STARTING
    operation_id: str = ""
    destination: None = None

    def refusal(self, hook_id: str, response: HookResponse) -> str:
        del hook_id
        match response:
            case StopRunResponse(payload=reason):
                return refusal_of_reason(reason)
            case InjectContextResponse(payload=injections):
                return self._refusal_of_inputs(injections)
        return f"nothing of {response.response_class} can be applied to a run that starts"

    def _refusal_of_inputs(self, injections: Sequence[ContextInjectionRequest]) -> str:
        if self.request.has_prompt:
            return "a model drives the run, which has no inputs"
        if not 1 <= len(injections) <= INJECTIONS_MAX:
            return f"a response adds 1 to {INJECTIONS_MAX} inputs, this one {len(injections)}"
        names = list(self.request.inputs)
        for one in injections:
            if refusal := _refusal_of_input(one, names):
                return refusal
            names.append(one.name)
        try:
            size = len(encode_json([one.value for one in injections]))
        except (TypeError, ValueError, RecursionError) as error:
            return f"the inputs are not JSON: {error}"
        if size > INJECTIONS_SIZE_MAX:
            return f"the inputs have {size} bytes, the limit is {INJECTIONS_SIZE_MAX}"
        return ""

    def applied(self, left: Iterable[facts.HookFact]) -> RunBeginning:
        """With the inputs of these facts."""
        if not (inputs := injected_inputs(left)):
            return self
        merged = {**self.request.inputs, **inputs}
        return self._replace(request=msgspec.structs.replace(self.request, inputs=merged))


def _refusal_of_input(one: ContextInjectionRequest, known: Sequence[str]) -> str:
    may_be_input = is_python_identifier(one.name) and not iskeyword(one.name)
    if not may_be_input or one.name.startswith("__") or one.value is UNSET:
        return f"an input has a value and a name that programs can use, not {one.name!r}"
    if one.name in known:
        return f"the run has an input {one.name} already"
    return refusal_of_summary(one.redacted_summary)


class ModelStep(NamedTuple):
    """A question to the model of a run that is about to be recorded, or its answer."""

    point: HookPoint
    question: model.Requested
    messages: tuple[ConversationMessage | UnsetType, ...]
    """Those that join the conversation with it; unset ones are in the blob store."""
    operation_id: str = ""
    destination: None = None

    @property
    def text(self) -> str | UnsetType:
        """What the model has answered, as conditions see it."""
        if self.point is not HookPoint.AFTER_MODEL_CALL:
            return UNSET
        (answer,) = self.messages
        return UNSET if answer is UNSET else answer.text

    def refusal(self, hook_id: str, response: HookResponse) -> str:
        del hook_id
        if isinstance(response, StopRunResponse):
            return refusal_of_reason(response.payload)
        return f"nothing of {response.response_class} can be applied to a question to a model"


class RunCompletion(NamedTuple):
    """A run whose program has ended with a result that is not on record yet."""

    result: RunResult
    no_retry: str = ""
    """Why its program may not be executed once more; empty if it may."""
    point: HookPoint = HookPoint.BEFORE_RUN_COMPLETE
    operation_id: str = ""
    destination: None = None

    def refusal(self, hook_id: str, response: HookResponse) -> str:
        del hook_id
        match response:
            case StopCompletionWithRepairNeededResponse(payload=reason):
                return refusal_of_reason(reason)
            case RequestRetryResponse(payload=retry):
                return self.no_retry or refusal_of_summary(retry.redacted_summary)
        return f"nothing of {response.response_class} can be applied to the end of a run"


class RunCancel(NamedTuple):
    """A run that is to be cancelled."""

    run_id: str
    point: HookPoint = HookPoint.ON_RUN_CANCEL_REQUESTED
    operation_id: str = ""
    destination: None = None

    def refusal(self, hook_id: str, response: HookResponse) -> str:
        del hook_id
        if isinstance(response, RequestCleanupRepairResponse):
            return refusal_of_summary(response.payload.redacted_summary)
        return f"nothing of {response.response_class} can be applied to a cancellation"


# --- from facts -----------------------------------------------------------------------------------


def injected_inputs(left: Iterable[facts.HookFact]) -> Mapping[str, Any]:
    """The inputs that hooks have added to a run, as JSON has them."""
    found: dict[str, Any] = {}
    for fact in left:
        if isinstance(fact, facts.ResponseDecided):
            change = fact.change
            if isinstance(change, InjectContextResponse):
                found |= {one.name: one.value for one in change.payload}
    return msgspec.json.decode(encode_json(found)) if found else found


def run_ending(left: Iterable[facts.HookFact]) -> facts.ResponseDecided | None:
    """The response that ends the run, or that executes its program once more."""
    for fact in left:
        if isinstance(fact, facts.ResponseDecided):
            stops = isinstance(
                fact.change, StopRunResponse | StopCompletionWithRepairNeededResponse
            )
            if stops or fact.retries_run:
                return fact
    return None


def check_recorded(left: Sequence[facts.HookFact], request: RunRequest | UnsetType) -> None:
    """Raise ``GUARD_REJECTED`` unless each accepted response is one of its point, is the one that
    its record names, and has the intent and the result of its change behind it; and unless the
    inputs that are added may be, to the ``request`` of the run if that is known."""
    following, start = iter(left), RunBeginning(RunRequest() if request is UNSET else request)
    for fact in following:
        if isinstance(fact, facts.MutationIntended | facts.MutationResulted):
            raise _forged(fact, "a change without the response that was accepted")
        if not isinstance(fact, facts.ResponseDecided):
            continue
        answer, named = fact.change.response_class, getattr(fact.record, "payload", None)
        decided = getattr(named, "payload", None)
        if answer not in fact.point.allowed_response_classes or not answer.changes_behavior:
            raise _forged(fact, f"{answer} is no response that changes {fact.point}")
        if getattr(decided, "response_class", None) is not answer:
            raise _forged(fact, f"its record is not of {answer}")
        intended, resulted = next(following, None), next(following, None)
        if not (
            isinstance(intended, facts.MutationIntended)
            and isinstance(resulted, facts.MutationResulted)
            and intended.hook_id == resulted.hook_id == fact.hook_id
            and intended.effect_intent.effect_id == resulted.effect_result.effect_id
        ):
            raise _forged(fact, "the three facts of its change do not follow each other")
        if isinstance(fact.change, InjectContextResponse):
            if refusal := start.refusal("", fact.change):
                raise _forged(fact, refusal)
            start = start.applied((fact,))


def _forged(fact: facts.HookFact, reason: str) -> Refused:
    return Refused("GUARD_REJECTED", f"hook {fact.hook_id.as_str()}: {reason}")
