"""What hooks did, folded from the facts that runs left: how often each one changed or refused what
it judged, failed, and would have acted if it were enforced.

An invocation after which a run goes on as before leaves no fact, so it is not counted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rookery.actors.projections.checkpoint import version_of
from rookery.actors.projections.pages import Unpaged
from rookery.bus.ports import StoredMessage
from rookery.schemas.codec import fact_tag
from rookery.schemas.facts import hook
from rookery.schemas.hooks import HookActivity, HookMode, NotedAction

__all__ = ["HookProjection"]

FOLDS: Final = 1
RECENT_MAX: Final = 10
HOOKS_MAX: Final = 1_000
"""Hooks of nodes' registries have no fact that removes them."""
_FAMILY: Final = b'"hook.'
_FAMILIES: Final = ("turn", "hook")
_REGISTERED, _MODE_SET = fact_tag(hook.Registered), fact_tag(hook.ModeSet)
_REMOVED, _DECIDED = fact_tag(hook.Removed), fact_tag(hook.ResponseDecided)
_REJECTED, _NOTED = fact_tag(hook.ResponseRejected), fact_tag(hook.Noted)


class HookFactView(Struct, gc=False):
    """The fields of hook facts that are counted. Facts of other families in the same message have
    other types under some of these names."""

    type: str
    at_ms: int = 0
    hook_id: str = ""
    session: str = ""
    run: str = ""
    mode: Any = ""
    would: Any = ""
    error: Any = ""
    reason: Any = ""


_decode = msgspec.json.Decoder(list[HookFactView]).decode


class HookProjection(Unpaged):
    """The activity of hooks, by id."""

    name = "hooks"
    version = version_of(FOLDS, HookActivity)

    def __init__(self) -> None:
        self.activity: dict[str, HookActivity] = {}

    def apply(self, stored: StoredMessage) -> None:
        """Fold a message of the journal."""
        if stored.entity.family not in _FAMILIES or _FAMILY not in stored.body:
            return
        try:
            facts = _decode(stored.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # Sealed or damaged.
        for fact in facts:
            if fact.type.startswith("hook."):
                self._fold(fact)

    def parts(self) -> Iterator[bytes]:
        yield msgspec.msgpack.encode(self.activity)

    def empty(self) -> HookProjection:
        return HookProjection()

    def restore(self, part: bytes) -> None:
        self.activity |= msgspec.msgpack.decode(part, type=dict[str, HookActivity])

    def _fold(self, fact: HookFactView) -> None:
        name, at_ms = fact.hook_id, fact.at_ms
        known = self.activity.get(name, HookActivity())
        if fact.type == _REGISTERED:
            known = HookActivity(since_ms=at_ms, mode_since_ms=at_ms)
        elif fact.type == _MODE_SET:
            known = replace(known, mode_since_ms=at_ms)
        elif fact.type == _REMOVED:
            self.activity.pop(name, None)
            return
        elif fact.type == _DECIDED:
            known = replace(known, changed=known.changed + 1, last_ms=at_ms)
        elif fact.type == _REJECTED:
            known = _with(known, fact, f"wanted what it may not: {fact.reason}")
            known = replace(known, refused=known.refused + 1)
        elif fact.type == _NOTED and fact.error:
            known = _with(known, fact, f"failed: {fact.error}")
            known = replace(known, failed=known.failed + 1)
        elif fact.type == _NOTED and fact.mode == HookMode.AUDIT:
            known = _with(known, fact, f"would {fact.would}")
            known = replace(known, would=known.would + 1)
        else:
            return
        if name in self.activity or len(self.activity) < HOOKS_MAX:
            self.activity[name] = known


def _with(known: HookActivity, fact: HookFactView, text: str) -> HookActivity:
    """With one more thing to read; the oldest is left out."""
    noted = NotedAction(at_ms=fact.at_ms, session=fact.session, run=fact.run, text=text[:400])
    recent = (*known.recent, noted)[-RECENT_MAX:]
    return replace(known, recent=recent, last_ms=fact.at_ms)
