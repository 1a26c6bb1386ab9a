"""What the journal says of hooks: counts and the last notes, from the facts that runs leave."""

from __future__ import annotations

from typing import Any

from rookery.actors.projections.lists.hooks import FOLDS, RECENT_MAX, HookProjection
from rookery.schemas.calls import ToolFault
from rookery.schemas.codec import encode_facts
from rookery.schemas.digest import digest_json
from rookery.schemas.facts import hook, tool
from rookery.schemas.hooks import HookMode
from rookery.schemas.run import CallStatus
from rookery.schemas.seed.hook import HookPoint
from tests.hooks.hook_fixtures import registration, spec
from tests.projections.fact_builders import FactHistory

REGISTRATION = registration(spec())
GUARD = REGISTRATION.spec.hook_id
CALL = {"run": "r", "operation_id": "o", "session": "s"}
FOLDED = (1, "a0edaa7e7770f46667a1cf8294882f47418e9874e126771e2fbff54201bf4f06")
ABOUT = {**CALL, "hook_id": GUARD}


def noted(**fields: Any) -> hook.Noted:
    given = {"status": "audited", "mode": HookMode.AUDIT, "elapsed_ms": 1, **ABOUT, **fields}
    return hook.Noted(point=HookPoint.BEFORE_TOOL_CALL, invocation_id="i", **given)


def folded(history: FactHistory) -> HookProjection:
    table = HookProjection()
    for stored in history.messages:
        table.apply(stored)
    restored = HookProjection()
    for part in table.parts():
        restored.restore(part)
    assert restored.activity == table.activity
    return table


def test_what_an_audited_hook_would_have_done_is_counted_from_its_registration_on():
    history = FactHistory()
    history.say("s", noted(would="deny: before it was registered"))
    registered = hook.Registered(
        hook_id=GUARD,
        sequence=1,
        registration=REGISTRATION,
        record=REGISTRATION.spec.registered(),
    )
    history.say("_realm", registered)
    since_ms = history.now_ms
    failed = noted(status="failed_closed", mode=HookMode.ENFORCE, error="it raised")
    fault = ToolFault(code="X", message="an object where hooks have a text")
    other = tool.Failed(**CALL, error=fault, status=CallStatus.ERROR, duration_ms=1)
    history.say("s", noted(would="deny: too much"), noted(would="deny: again"))
    history.write("turn", "s", encode_facts((other, failed)))
    found = folded(history).activity[GUARD.as_str()]
    assert (found.since_ms, found.would, found.failed, found.changed) == (since_ms, 2, 1, 0)
    assert [one.text for one in found.recent] == [
        *("would deny: too much", "would deny: again", "failed: it raised"),
    ]


def test_a_mode_has_its_time_and_a_removed_hook_no_counts():
    history = FactHistory()
    history.say("s", noted(would="x"))
    mode = hook.ModeSet(hook_id=GUARD, sequence=2, mode=HookMode.ENFORCE)
    history.say("_realm", mode)
    assert folded(history).activity[GUARD.as_str()].mode_since_ms == history.now_ms
    history.say("_realm", hook.Removed(hook_id=GUARD, sequence=3))
    assert folded(history).activity == {}


def test_only_the_last_notes_are_kept():
    history = FactHistory()
    for number in range(RECENT_MAX + 3):
        history.say("s", noted(would=f"deny: {number}"))
    found = folded(history).activity[GUARD.as_str()]
    assert (found.would, len(found.recent)) == (RECENT_MAX + 3, RECENT_MAX)
    assert found.recent[-1].text == f"would deny: {RECENT_MAX + 2}"


def test_a_changed_fold_needs_a_new_number():
    history = FactHistory()
    history.say("s", noted(would="deny: no"), noted(error="it raised"))
    parts = b"".join(folded(history).parts())
    assert (FOLDS, digest_json(parts.hex())) == FOLDED, "raise FOLDS: old checkpoints differ"
