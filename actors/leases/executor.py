"""The executor of leases: asks providers, seals credentials, arms timers, and ends waits of calls.

It runs on the owner of a lease. Every effect may be performed again after a crash; the actor
refuses what is done. Runs on the bus's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler, Failpoints, NotExecutableHere
from rookery.actors.leases.effects import (
    ArmLeaseTimer,
    DropCredentials,
    DropLogins,
    EndWaits,
    MoveWaits,
    RefreshCredential,
)
from rookery.actors.leases.provider import (
    Binding,
    LeaseCredential,
    LeaseSecrets,
    LoginNeeded,
    Outcome,
    Provider,
    Renewed,
    RetryLater,
)
from rookery.actors.leases.refresh_rules import (
    RETRY_ASKED_MS_MAX,
    EndedWaits,
    IntendRefresh,
    LeaseStatus,
    RefreshEnded,
    flow_name,
    secret_name,
    short_name,
)
from rookery.actors.metrics import NO_METRICS, KernelMetrics
from rookery.bus.ports import Timer, Timers, at_once_ms
from rookery.schemas.calls import LEASE_REAUTH_REQUIRED, WAITING_FOR_LEASE
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import LeaseDue, WaitEnded
from rookery.schemas.errors import CODES, CodedError, Failed
from rookery.schemas.machines.lease import LeaseKey

__all__ = ["LeaseExecutor", "seal_credential"]

log = logging.getLogger(__name__)

FAMILY: Final = "lease"
PER_BINDING_MAX: Final = 8
"""Refreshes of one binding at a time, but for those that take longer than ``SLOW_AFTER_S``."""
SLOW_AFTER_S: Final = 1.0
SLOW_MAX: Final = 64
"""Refreshes of one binding at a time, with the slow ones; each may have a thread."""
WAITS_AT_ONCE_MAX: Final = 100
SEAL_RETRY_S: Final = 0.5
_METRICS_OUTCOMES: Final[Mapping[type[Outcome], str]] = {
    Renewed: "renewed",
    RetryLater: "try_later",
    LoginNeeded: "login_needed",
}
TIMER_MS_MAX: Final = 9_000_000_000_000
"""A credential that expires after the year 2255 is not refreshed before."""


class _Slots:
    """Room for the refreshes of one binding. One whose provider hangs leaves its room to others, so
    that it delays no other lease."""

    def __init__(self) -> None:
        self._quick, self._all = asyncio.Semaphore(PER_BINDING_MAX), asyncio.Semaphore(SLOW_MAX)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        async with self._all:
            await self._quick.acquire()
            held = [self._quick]

            def release() -> None:
                while held:
                    held.pop().release()

            slow = asyncio.get_running_loop().call_later(SLOW_AFTER_S, release)
            try:
                yield
            finally:
                slow.cancel()
                release()


@dataclass(kw_only=True)
class LeaseExecutor:
    """One per node."""

    ask: AskActor
    timers: Timers
    secrets: LeaseSecrets
    bindings: Mapping[str, Binding]
    """By the name of the binding."""
    providers: Mapping[str, Provider]
    now_ms: Callable[[], int]
    metrics: KernelMetrics = NO_METRICS
    failpoints: Failpoints = field(default_factory=Failpoints)
    _slots: dict[str, _Slots] = field(default_factory=lambda: defaultdict(_Slots))
    """By the name of the binding."""
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """By lease: a later owner may find the same refresh in several facts."""

    @property
    def handlers(self) -> dict[type[Effect], EffectHandler]:
        return {
            RefreshCredential: self.refresh,
            ArmLeaseTimer: self.arm_timer,
            EndWaits: self.end_waits,
            MoveWaits: self.move_waits,
            DropCredentials: self.drop_credentials,
            DropLogins: self.drop_logins,
        }

    # --- refreshes --------------------------------------------------------------------------------

    async def refresh(self, effect: RefreshCredential) -> None:
        """Renew the credential: intent, provider, seal, fact. A credential that an earlier owner
        sealed is taken; nothing is asked again."""
        key = LeaseKey.parse(effect.lease)
        lock = self._locks.setdefault(effect.lease, asyncio.Lock())
        await asyncio.sleep(self._pause_s(effect))
        async with lock, self._slots[key.binding].one():
            ended = await self._ended(effect, key)
            if ended is None:
                return
            if not ended.sealed_as:
                log.info("lease not renewed", extra={"key": effect.lease, "why": ended.reason})
            status = await self.ask(FAMILY, effect.lease, ended, LeaseStatus)
            if status.is_sealed_for_nothing:
                await self.secrets.delete(secret_name(effect.lease), ended.sealed_as)
            self.failpoints.hit("refresh_recorded")

    def _pause_s(self, effect: RefreshCredential) -> float:
        """How long the provider may not be asked yet; never longer than a server may ask for."""
        return min(max(0, effect.not_before_ms - self.now_ms()), RETRY_ASKED_MS_MAX) / 1_000

    async def _ended(self, effect: RefreshCredential, key: LeaseKey) -> RefreshEnded | None:
        """The end of the refresh. Where the secrets refuse to open or to seal a credential, a
        repetition would not help, and could use a refresh token twice."""
        try:
            return await self._sealed(effect) or await self._renew(effect, key)
        except CodedError as error:
            if CODES[error.code].retryable:
                raise
            if error.code == "SEALING_KEY_MISSING":
                raise NotExecutableHere(error.message) from None
            reason = f"the credential cannot be opened or stored: {error.code}"
            return _failed(effect, LoginNeeded(reason, may_be_lost=True))

    async def _sealed(self, effect: RefreshCredential) -> RefreshEnded | None:
        """The end of a refresh whose owner died after it had sealed the credential."""
        value = await self.secrets.get(secret_name(effect.lease), effect.next_sealed_as)
        if value is None:
            return None
        return _published(effect, effect.next_sealed_as, _decode(value))

    async def _renew(self, effect: RefreshCredential, key: LeaseKey) -> RefreshEnded | None:
        """Ask the provider; ``None`` if the refresh is no longer due."""
        binding = self.bindings.get(key.binding)
        provider = None if binding is None else self.providers.get(binding.provider)
        if binding is None or provider is None:
            reason = f"this node has no binding {key.binding}: add [bindings.{key.binding}]"
            return _failed(effect, LoginNeeded(reason))
        binding = msgspec.structs.replace(binding, key=key)
        present = await self._present(effect)
        repeatable = provider.is_repeatable(binding, present)
        intent = IntendRefresh(credential=effect.credential, repeatable=repeatable)
        status = await self.ask(FAMILY, effect.lease, intent, LeaseStatus)
        if not status.may_ask:
            return None
        self.failpoints.hit("refresh_intended")
        self.metrics.refresh_begun(binding.provider)
        began_ms = self.now_ms()
        outcome = await self._outcome(provider, binding, present, repeatable=repeatable)
        self.failpoints.hit("provider_answered")
        seconds = self._seconds_since(began_ms)
        self.metrics.refresh_ended(binding.provider, _METRICS_OUTCOMES[type(outcome)], seconds)
        if not isinstance(outcome, Renewed):
            return _failed(effect, outcome)
        return await self._seal(effect, outcome.credential)

    async def _present(self, effect: RefreshCredential) -> LeaseCredential | None:
        if not effect.sealed_as:
            return None
        value = await self.secrets.get(secret_name(effect.lease), effect.sealed_as)
        return None if value is None else _decode(value)

    async def _outcome(
        self,
        provider: Provider,
        binding: Binding,
        present: LeaseCredential | None,
        *,
        repeatable: bool,
    ) -> Outcome:
        now = self.now_ms() / 1_000
        lost = RetryLater if repeatable else _login_needed
        try:
            async with asyncio.timeout(binding.timeout_s):
                outcome = await provider.refresh(binding, present, now=now)
        except TimeoutError:
            return lost(0.0, f"{binding.provider} gave no answer in {binding.timeout_s:g} s")
        except Exception as error:  # Its text may contain a secret.
            log.error("provider failed", extra={"key": str(binding.key), "kind": type(error)})
            return lost(0.0, f"{binding.provider} failed: {type(error).__name__}")
        if isinstance(outcome, Renewed):
            expires_at = outcome.credential.expires_at
            if expires_at is not None and expires_at * 1_000 <= self.now_ms():
                return lost(0.0, f"{binding.provider} gave a credential that has expired")
        return outcome

    async def _seal(self, effect: RefreshCredential, credential: LeaseCredential) -> RefreshEnded:
        number = await seal_credential(
            self.secrets, effect.lease, effect.next_sealed_as, credential
        )
        self.failpoints.hit("credential_sealed")
        return _published(effect, number, credential)

    # --- timers and calls -------------------------------------------------------------------------

    async def arm_timer(self, effect: ArmLeaseTimer) -> None:
        if effect.due_ms > TIMER_MS_MAX:
            return
        due = LeaseDue(credential=effect.credential)
        timer = Timer(
            id=f"lease.{short_name(effect.lease)}",
            due_ms=effect.due_ms,
            verb="lease_due",
            key=effect.lease,
            body=encode_json(due),
        )
        await self.timers.arm(timer)

    async def end_waits(self, effect: EndWaits) -> None:
        """Send each session a durable command, then record that it was sent."""
        for first in range(0, len(effect.calls), WAITS_AT_ONCE_MAX):
            calls = effect.calls[first : first + WAITS_AT_ONCE_MAX]
            await self._send(effect.key, calls, waits_for="")
            ended = EndedWaits(tuple(operation_id for operation_id, _ in calls))
            self.failpoints.hit("waits_ended")
            await self.ask(FAMILY, effect.lease, ended, LeaseStatus)
            self._report_waits(effect.lease, effect.since_ms[first : first + WAITS_AT_ONCE_MAX])

    def _report_waits(self, lease: str, since_ms: Sequence[int]) -> None:
        binding = self.bindings.get(LeaseKey.parse(lease).binding)
        if binding is None:
            return  # It was removed after the credential was sealed.
        for began_ms in since_ms:
            self.metrics.credential_awaited(binding.provider, self._seconds_since(began_ms))

    def _seconds_since(self, began_ms: int) -> float:
        return max(0, self.now_ms() - began_ms) / 1_000

    async def move_waits(self, effect: MoveWaits) -> None:
        await self._send(effect.key, effect.calls, waits_for=LEASE_REAUTH_REQUIRED)

    async def _send(self, cause: str, calls: Sequence[tuple[str, str]], *, waits_for: str) -> None:
        """Send durable commands to the sessions of calls, by timers that are due: no client can
        pretend them, and the bus delivers them to any owner."""
        due_ms = at_once_ms(self.now_ms())
        for first in range(0, len(calls), WAITS_AT_ONCE_MAX):
            await asyncio.gather(
                *(
                    self.timers.arm(
                        Timer(
                            id=f"lease_wait.{operation_id}.{short_name(cause)}",
                            due_ms=due_ms,
                            verb="wait_ended",
                            key=session,
                            body=encode_json(
                                WaitEnded(
                                    operation_id=operation_id,
                                    code=WAITING_FOR_LEASE,
                                    waits_for=waits_for,
                                )
                            ),
                        )
                    )
                    for operation_id, session in calls[first : first + WAITS_AT_ONCE_MAX]
                )
            )

    # --- secrets ----------------------------------------------------------------------------------

    async def drop_credentials(self, effect: DropCredentials) -> None:
        for generation in effect.generations:
            await self.secrets.delete(secret_name(effect.lease), generation)

    async def drop_logins(self, effect: DropLogins) -> None:
        for flow_id in effect.flow_ids:
            await self.secrets.delete(flow_name(effect.lease, flow_id), 1)


async def seal_credential(
    store: LeaseSecrets, lease: str, number: int, credential: LeaseCredential
) -> int:
    """Seal a new credential under the first free generation from ``number`` on; during an outage
    until that is done, for there is no other. The generation."""
    value = msgspec.json.encode(credential)
    while True:
        try:
            if await store.put(secret_name(lease), number, value):
                return number
            number += 1  # A former owner, which did not know that it was one, sealed it.
        except Failed as failure:
            if not CODES[failure.code].retryable:
                raise
            log.warning("credential not sealed, retrying", extra={"code": failure.code})
            await asyncio.sleep(SEAL_RETRY_S)


def _login_needed(_: float, reason: str) -> LoginNeeded:
    return LoginNeeded(f"{reason}, and a refresh token may be lost", may_be_lost=True)


def _published(
    effect: RefreshCredential, sealed_as: int, credential: LeaseCredential
) -> RefreshEnded:
    return RefreshEnded(
        credential=effect.credential, sealed_as=sealed_as, expires_at=credential.expires_at
    )


def _failed(effect: RefreshCredential, outcome: RetryLater | LoginNeeded) -> RefreshEnded:
    ended = RefreshEnded(credential=effect.credential, reason=outcome.reason)
    if isinstance(outcome, RetryLater):
        return msgspec.structs.replace(ended, retry_after_ms=int(outcome.after_s * 1_000))
    return msgspec.structs.replace(ended, permanent=True, may_be_lost=outcome.may_be_lost)


def _decode(value: bytes) -> LeaseCredential:
    return msgspec.json.decode(value, type=LeaseCredential)
