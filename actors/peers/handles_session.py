"""CommsDrainHandle, PeerCommsHandle and SessionContextHandle: a session's side of its peers."""

from __future__ import annotations

from typing import Any, Protocol

from rookery.actors.kernel.machines import (
    Authority,
    RejectionKind,
    TransitionEffect,
    TransitionRejected,
)
from rookery.actors.peers.context_machine import CONTEXT, SessionContextAdvanced
from rookery.actors.peers.drain_machine import DRAIN
from rookery.actors.peers.ingress_admission import (
    admit_envelope,
    admit_plain_event,
    classification_fact,
)
from rookery.actors.peers.ingress_machine import INGRESS, PeerIngressClassified
from rookery.schemas.machines.peer import (
    DrainExitReason,
    DrainMode,
    PeerIngressAdmission,
    PeerIngressEnvelopeFacts,
    PeerIngressPlainEventFacts,
)

__all__ = [
    "CommsDrainHandle",
    "PeerCommsHandle",
    "SessionContextAdvancedObserver",
    "SessionContextHandle",
]


class CommsDrainHandle:
    """Whether the task that drains the session's peer traffic is wanted."""

    def __init__(self, authority: Authority | None = None) -> None:
        self._authority = authority or Authority()

    def ensure_drain_running(self) -> None:
        self._put("ensure_drain_running")

    def spawn_drain(self, mode: DrainMode) -> None:
        self._put("spawn_drain", mode=mode)

    def stop_drain(self) -> None:
        self._put("stop_drain")

    def drain_exited_clean(self) -> None:
        self._put("drain_exited_clean")

    def drain_exited_respawnable(self) -> None:
        self._put("drain_exited_respawnable")

    def notify_drain_exited(self, reason: DrainExitReason) -> None:
        self._put("notify_drain_exited", reason=reason)

    def _put(self, on: str, **params: Any) -> None:
        self._authority.apply(DRAIN, on, params)


class PeerCommsHandle:
    """Classifies items from outside before a session acts on them; a refused item is not
    admitted."""

    def __init__(self, authority: Authority | None = None) -> None:
        self._authority = authority or Authority()

    def classify_external_envelope(self, facts: PeerIngressEnvelopeFacts) -> PeerIngressAdmission:
        on = "classify_external_envelope"
        effects = self._authority.decide(INGRESS, on, classification_fact(facts))
        return admit_envelope(facts, _classified(effects))

    def classify_plain_event(self, facts: PeerIngressPlainEventFacts) -> PeerIngressAdmission:
        params = {"source_name": facts.source_name}
        effects = self._authority.apply(INGRESS, "classify_plain_event", params)
        return admit_plain_event(facts, _classified(effects))

    def set_peer_ingress_context(self, keep_alive: bool) -> None:
        params = {"keep_alive": keep_alive}
        self._authority.apply(INGRESS, "set_peer_ingress_context", params)


def _classified(effects: tuple[TransitionEffect, ...]) -> PeerIngressClassified:
    return next(effect for effect in effects if isinstance(effect, PeerIngressClassified))


class SessionContextAdvancedObserver(Protocol):
    """Observes every newer tick."""

    def on_session_context_advanced(self, updated_at_ms: int) -> None: ...


def _notify_observer(
    observer: SessionContextAdvancedObserver, effect: SessionContextAdvanced
) -> None:
    observer.on_session_context_advanced(effect.updated_at_ms)


class SessionContextHandle:
    """The watermark of the session's context."""

    def __init__(self, authority: Authority | None = None) -> None:
        self._authority = authority or Authority()

    def context_advanced(self, updated_at_ms: int) -> bool:
        """``False`` for a tick that is not newer."""
        try:
            self._authority.apply(CONTEXT, "context_advanced", {"updated_at_ms": updated_at_ms})
        except TransitionRejected as rejected:
            if rejected.kind is not RejectionKind.GUARD_REJECTED:
                raise
            return False
        return True

    def current_watermark_ms(self) -> int:
        return self._authority.read(CONTEXT).last_updated_at_ms

    def install_observer(self, observer: SessionContextAdvancedObserver) -> None:
        self._authority.install(SessionContextAdvanced, observer, _notify_observer)

    def install_observer_with_baseline(self, observer: SessionContextAdvancedObserver) -> int:
        """The watermark; the observer gets every later tick."""
        with self._authority:
            self.install_observer(observer)
            return self.current_watermark_ms()
