"""What ``rookery doctor`` checks of the hooks of a realm."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rookery.bus.client import Client
from rookery.bus.ports import Journal
from rookery.ops.checks import CheckVerdict, Finding, failed
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError
from rookery.schemas.hooks import HookList, HookMode, HooksQuery, ListedHook
from rookery.schemas.ids import REALM_KEY, decode_typed_text

__all__ = ["check_hooks", "hook_problems"]

DAY_MS = 86_400_000
AUDIT_DAYS_MAX = 30
TIMEOUT_S = 20.0
_DETAIL_MAX = 2_000
_UNANSWERED = ("NO_ANSWER", "PARTITION_UNOWNED", "UNKNOWN_VERB")


async def check_hooks(journal: Journal, client: Client, now_ms: int) -> Finding:
    """Check that a node can invoke each registered hook, and find those that guard less than they
    seem to."""
    if await journal.last(EntityId("hook", REALM_KEY)) is None:
        return Finding(check="hooks", detail="none")
    try:
        async with client:
            query = HooksQuery(probe=True)
            reply = await client.ask("hooked", REALM_KEY, query, timeout_s=TIMEOUT_S)
            hooks = msgspec.convert(reply, HookList, dec_hook=decode_typed_text).hooks
    except CodedError as error:
        if error.code not in _UNANSWERED:
            return failed("hooks", error)
        return Finding(check="hooks", detail="not checked: no node serves the realm")
    problems = [problem for one in hooks for problem in hook_problems(one, now_ms)]
    if not problems:
        enforced = sum(one.registration.mode is HookMode.ENFORCE for one in hooks)
        return Finding(check="hooks", detail=f"{len(hooks)}, {enforced} of them enforced")
    return Finding(
        check="hooks",
        verdict=CheckVerdict.WARN,
        detail="; ".join(problems)[:_DETAIL_MAX],
        hint="rookery hooks list, rookery hooks show ID",
        code="HOOK_EXECUTOR_MISSING" if any(one.problem for one in hooks) else "",
    )


def hook_problems(hook: ListedHook, now_ms: int) -> Iterator[str]:
    """What an operator should know of a hook."""
    spec, activity = hook.registration.spec, hook.activity
    name = spec.hook_id.as_str()
    if hook.registration.is_enabled and hook.problem:
        yield hook.problem
    if spec.may_fail_open and activity.failed and now_ms - activity.last_ms < DAY_MS:
        yield f"{name} fails open, and has failed {activity.failed} times, also in the last day"
    days = (now_ms - activity.mode_since_ms) // DAY_MS
    is_audited = hook.registration.mode is HookMode.AUDIT and activity.mode_since_ms
    if is_audited and days > AUDIT_DAYS_MAX:
        yield f"{name} is only audited, for {days} days: rookery hooks mode {name} enforce"
