"""The verb ``hook_trial``: what a hook would have done at recorded calls. Nothing is applied, and
nothing is recorded.

A trial is an audit: the hook is invoked, with a word that it is a trial where it is served outside
of the node, and its answer is judged as in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.hooks.decider import check_realm_key
from rookery.actors.hooks.executors import ExternalExecutor
from rookery.actors.hooks.node_hooks import NodeHooks
from rookery.actors.hooks.points.points import HookPoints
from rookery.actors.hooks.realm.live_hooks import LiveHooks
from rookery.actors.hooks.registration import check_registration
from rookery.actors.messages import ActiveRunView
from rookery.actors.tools.catalogue import ToolCatalogue
from rookery.bus.ports import Delivery, StoredMessage
from rookery.schemas.calls import (
    CallArguments,
    CallOutcome,
    PinnedHook,
    RequestedCall,
    RunEnvironment,
)
from rookery.schemas.codec import FactCodec, decode_command
from rookery.schemas.digest import digest_json
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import hook as facts
from rookery.schemas.facts import tool, turn
from rookery.schemas.hooks import (
    HookMode,
    HookRegistration,
    HookTrial,
    HookTrialReport,
    TrialVerdict,
    TriedCall,
)
from rookery.schemas.ids import HookExecutorRef
from rookery.schemas.run import Language, SessionLimits
from rookery.schemas.seed.hook import HookPoint
from rookery.schemas.seed.hook_invocation import HookInput, HookResponse

__all__ = ["HookTrials", "recorded_calls", "typed_call"]

TRIAL_MS: Final = 2_000
"""A trial may take longer than an invocation: nothing waits for it."""
_POINTS: Final = (HookPoint.BEFORE_TOOL_CALL, HookPoint.AFTER_TOOL_CALL)
_CODEC: FactCodec[Any] = FactCodec(turn.RUN_FACTS)


class _DryExecutor:
    """Says of every invocation that it is a trial."""

    def __init__(self, executor: ExternalExecutor) -> None:
        self._executor = executor

    @property
    def executor_ref(self) -> HookExecutorRef:
        return self._executor.executor_ref

    async def invoke(self, hook_input: HookInput) -> HookResponse:
        return await self._executor.invoke_dry(hook_input)


class HookTrials:
    """One per node; used on the bus's loop."""

    def __init__(
        self, live: LiveHooks, catalogue: ToolCatalogue, now_ms: Callable[[], int]
    ) -> None:
        self._live, self._catalogue, self._now_ms = live, catalogue, now_ms

    async def reply(self, delivery: Delivery) -> HookTrialReport:
        """Try a hook of the realm or of this node, or one that is not registered yet."""
        check_realm_key(delivery.key)
        trial = decode_command(delivery.body, HookTrial, content_type=delivery.content_type)
        registration = self._registration(trial)
        spec = registration.spec
        if spec.point not in _POINTS:
            text = f"hook {spec.hook_id.as_str()[:80]} is at {spec.point}"
            raise Refused("HOOK_POINT_NOT_LIVE", f"{text}: trials are of the hooks of calls")
        hooks = self._alone(registration)
        verdicts = [await self._try(hooks, registration, call) for call in trial.calls]
        return HookTrialReport(hook_id=spec.hook_id.as_str(), verdicts=tuple(verdicts))

    def _registration(self, trial: HookTrial) -> HookRegistration:
        if trial.registration is not UNSET:
            return check_registration(trial.registration)
        for one in self._live.hooks.registrations:
            if one.spec.hook_id.as_str() == trial.hook:
                return one
        raise Refused(
            "HOOK_NOT_FOUND",
            f"neither the realm nor this node has a hook {trial.hook[:80]!r}",
            hint="rookery hooks list",
        )

    def _alone(self, registration: HookRegistration) -> NodeHooks:
        """A node's hooks, of which there is this one, audited."""
        hooks, live = NodeHooks(), self._live
        spec = registration.spec
        timeout = replace(spec.timeout, timeout_ms=max(TRIAL_MS, spec.timeout.timeout_ms))
        tried = replace(registration, mode=HookMode.AUDIT, spec=replace(spec, timeout=timeout))
        hooks.follow({spec.hook_id.as_str(): tried}, {})
        external = live.open_executor(registration)
        found = live.hooks.executors.resolve(spec.executor_ref)
        if external is not None:
            hooks.executors.register(_DryExecutor(external))
        elif found is not None:
            hooks.executors.register(found)
        return hooks

    async def _try(
        self, hooks: NodeHooks, registration: HookRegistration, tried: TriedCall
    ) -> TrialVerdict:
        begun_ms = self._now_ms()
        hook_id = registration.spec.hook_id.as_str()
        environment = RunEnvironment(
            language=Language.PYTHON,
            build="",
            seed="",
            limits=SessionLimits(),
            hooks=(PinnedHook(hook_id=hook_id, digest=""),),
        )
        view = ActiveRunView(run_id=tried.run_id, offer=environment)
        points = HookPoints(hooks, self._catalogue, self._now_ms, tried.session, view)
        if registration.spec.point is HookPoint.BEFORE_TOOL_CALL:
            left = (await points.before_tool_calls([tried.call])).facts
        elif tried.outcome is UNSET:
            left = ()
        else:
            left = (await points.after_tool_call(tried.call, tried.outcome))[1].facts
        return TrialVerdict(
            run_id=tried.run_id,
            operation_id=tried.call.operation_id,
            name=tried.call.name,
            known=self._catalogue.get(tried.call.name) is not None,
            would=_words(left),
            elapsed_ms=max(0, self._now_ms() - begun_ms),
        )


def _words(left: Sequence[facts.HookFact]) -> str:
    """What the hook would have done; empty if nothing."""
    for fact in left:
        if isinstance(fact, facts.Noted):
            return f"fail: {fact.error}" if fact.error else fact.would or ""
    return ""


# --- the calls it is tried with -------------------------------------------------------------------


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
            recorded = _CODEC.decode(stored.body)
        except CodedError:
            continue
        session = stored.entity.key
        for fact in recorded:
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
