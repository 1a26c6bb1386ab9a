"""Conditions of hooks, and hooks that are a rule.

A condition that is false skips the hook; one that is undecided does not. A hook that is itself a
rule answers what its registration says if its condition is true, and fails if it is undecided, so
that its failure policy decides.
"""

from __future__ import annotations

from rookery.actors.protection.approval_rules import HookRule, RuleInput, RuleUndecided
from rookery.schemas.errors import Refused
from rookery.schemas.hooks import HookRegistration, RuleHook, RuleVerdict
from rookery.schemas.ids import HookExecutorRef
from rookery.schemas.seed.hook_invocation import HookInput, HookResponse, ObserveOnlyResponse

__all__ = ["RuleExecutor", "check_condition", "is_skipped"]

_OBSERVED = ObserveOnlyResponse()


def check_condition(registration: HookRegistration) -> None:
    """Raise ``RULE_INVALID`` if the condition does not parse."""
    if not registration.when:
        return
    try:
        HookRule.of(registration.when)
    except Refused as refusal:
        hook_id = registration.spec.hook_id.as_str()
        text = f"the condition of hook {hook_id[:80]}: {refusal.message}"
        raise Refused("RULE_INVALID", text, hint=refusal.hint) from None


def is_skipped(registration: HookRegistration, subject: RuleInput) -> bool:
    """Whether the hook is not invoked for this subject."""
    if not registration.when:
        return False
    try:
        return not HookRule.of(registration.when).is_true(subject)
    except RuleUndecided:
        return False


class RuleExecutor:
    """The executor of one hook that is a rule, for one subject."""

    def __init__(self, registration: HookRegistration, subject: RuleInput) -> None:
        assert isinstance(registration.executor, RuleHook)
        self._registration, self._subject = registration, subject
        self._then: RuleVerdict = registration.executor.then

    @property
    def executor_ref(self) -> HookExecutorRef:
        return self._registration.spec.executor_ref

    async def invoke(self, hook_input: HookInput) -> HookResponse:  # noqa: ARG002 - has the subject
        """The verdict of the rule; raises ``RuleUndecided``."""
        rule = HookRule.of(self._registration.when)
        return self._then if rule.is_true(self._subject) else _OBSERVED
