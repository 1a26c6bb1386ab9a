"""Facts of the family ``hook``: responses of hooks, in the messages of the turn they belong to, and
the hooks of the realm, under ``_realm``.

An accepted response has three facts: the decision, with its journal record, then the intent and the
result of the change, whose records follow from the first one's. They precede what they change in
the same message, so that nothing acts on a change that is not on record. A response that a guard
refused has one fact. What a failed or audited hook said is ``noted``; a note causes no message.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from rookery.schemas.envelope import Fact
from rookery.schemas.hooks import HookMode, HookRegistration
from rookery.schemas.ids import HookId
from rookery.schemas.scalars import Unsigned
from rookery.schemas.seed.hook import HookPoint, HookRecord, HookResponseClass
from rookery.schemas.seed.hook_invocation import AnyHookResponse, RequestRetryResponse
from rookery.schemas.seed.lifecycle import EffectIntent, EffectResult
from rookery.schemas.seed.records import JournalRecord

__all__ = ["HOOK_FACTS", "REGISTRATION_FACTS", "HookFact", "RegistrationFact"]

# --- invocations ----------------------------------------------------------------------------------


class _InvokedHookFact(Fact, frozen=True, kw_only=True):
    run: str
    operation_id: str | UnsetType = UNSET
    """The call, at a point of a call."""
    hook_id: HookId


class ResponseDecided(_InvokedHookFact, frozen=True, kw_only=True, tag="hook.response_decided.v1"):
    """A response was accepted: what it changes follows."""

    point: HookPoint
    record: JournalRecord
    change: AnyHookResponse
    """The response; the turn derives from it what is executed."""

    @property
    def retries_run(self) -> bool:
        """Whether it lets the program of the run be executed once more."""
        is_end = self.point is HookPoint.BEFORE_RUN_COMPLETE
        return is_end and isinstance(self.change, RequestRetryResponse)


class MutationIntended(
    _InvokedHookFact, frozen=True, kw_only=True, tag="hook.mutation_intended.v1"
):
    """The change of the response before is about to be applied."""

    effect_intent: EffectIntent


class MutationResulted(
    _InvokedHookFact, frozen=True, kw_only=True, tag="hook.mutation_resulted.v1"
):
    """The change is on record; from here on it is applied."""

    effect_result: EffectResult


class ResponseRejected(
    _InvokedHookFact, frozen=True, kw_only=True, tag="hook.response_rejected.v1"
):
    """A response was refused by the guard, so the hook stops what it wanted to change."""

    point: HookPoint
    record: JournalRecord
    reason: str


class Noted(_InvokedHookFact, frozen=True, kw_only=True, tag="hook.noted.v1"):
    """What a hook that failed, or that is audited, has said."""

    point: HookPoint
    invocation_id: str
    status: str
    """Of the invocation, or ``failed_closed``."""
    mode: HookMode
    elapsed_ms: Unsigned
    response_class: HookResponseClass | UnsetType = UNSET
    would: str | UnsetType = UNSET
    """What an enforced hook would have done."""
    error: str | UnsetType = UNSET
    refuses: bool | UnsetType = UNSET
    """Set if the call, or the step of the run, is refused because the hook failed."""
    parks: bool | UnsetType = UNSET
    """Set if the run parks because the hook failed; the hook is invoked again on resumption."""


HookFact = ResponseDecided | MutationIntended | MutationResulted | ResponseRejected | Noted

# --- registrations --------------------------------------------------------------------------------


class _RegistrationFact(Fact, frozen=True, kw_only=True):
    hook_id: HookId
    sequence: Unsigned
    """Number of the change of the realm's hooks, from 1; the facts of one change share it."""
    actor: str = ""


class Registered(_RegistrationFact, frozen=True, kw_only=True, tag="hook.registered.v1"):
    """The realm has the hook in this form; an earlier form is replaced."""

    registration: HookRegistration
    record: HookRecord
    """Of the contract: the hash of the spec, its executor and its policy."""


class ModeSet(_RegistrationFact, frozen=True, kw_only=True, tag="hook.mode_set.v1"):
    """The hook has another mode."""

    mode: HookMode


class Removed(_RegistrationFact, frozen=True, kw_only=True, tag="hook.removed.v1"):
    """The realm no longer has the hook."""


RegistrationFact = Registered | ModeSet | Removed
REGISTRATION_FACTS = RegistrationFact
HOOK_FACTS = HookFact | RegistrationFact
