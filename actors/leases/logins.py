"""Logins of people, and the list of leases: the queries that the owner of a lease answers.

A login is a fact of the lease from its begin to its end; what completes it is sealed under the id
of its flow. It ends with a credential, which is sealed before its fact, as that of a refresh is.
The browser's code and the token pass through this node's memory alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from rookery.actors.kernel.executors import AskActor, QueryHandler
from rookery.actors.leases.executor import seal_credential
from rookery.actors.leases.lease_rules import LeaseEntry, evolve, lease_snapshot
from rookery.actors.leases.provider import (
    Binding,
    LeaseSecrets,
    Login,
    LoginNeeded,
    LoginProvider,
    LoginSecret,
    Outcome,
    Provider,
    Renewed,
    RetryLater,
)
from rookery.actors.leases.providers import callback_code, is_login_provider
from rookery.actors.leases.refresh_rules import (
    BeginFlow,
    EndFlow,
    LeaseStatus,
    LeaseStatusQuery,
    flow_name,
    requires_login,
)
from rookery.actors.leases.state import auth_status
from rookery.actors.metrics import NO_METRICS, KernelMetrics
from rookery.bus.ports import Delivery, Filter, Journal
from rookery.schemas.codec import FactCodec, decode_command
from rookery.schemas.commands import FinishLogin, LeasesQuery, StartLogin
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import lease as facts
from rookery.schemas.machines.lease import LeaseKey
from rookery.schemas.replies import LeaseList, ListedLease, LoginStarted, LoginStatus

__all__ = ["LeaseLogins", "list_leases"]

FAMILY: Final = "lease"
FLOW_BYTES: Final = 12
POLL_S: Final = 5.0
_CODEC: FactCodec[facts.LeaseFact] = FactCodec(facts.LEASE_FACTS)


class LeaseLogins:
    """One per node."""

    def __init__(
        self,
        *,
        ask: AskActor,
        journal: Journal,
        secrets: LeaseSecrets,
        bindings: Mapping[str, Binding],
        providers: Mapping[str, Provider],
        entropy: Callable[[int], bytes],
        now_ms: Callable[[], int],
        metrics: KernelMetrics = NO_METRICS,
    ) -> None:
        self._ask, self._journal, self._secrets = ask, journal, secrets
        self._bindings, self._providers = bindings, providers
        self._entropy, self._now_ms, self._metrics = entropy, now_ms, metrics
        self._in_progress: set[str] = set()
        """Flows whose provider is asked now."""

    @property
    def queries(self) -> Mapping[str, QueryHandler]:
        return {"login": self.start, "finish_login": self.finish, "leased": self.list}

    async def start(self, delivery: Delivery) -> LoginStarted:
        """Begin a login: by a browser if the client has an address for it to return to, else by a
        code that is confirmed on another device."""
        command = decode_command(delivery.body, StartLogin, content_type=delivery.content_type)
        binding, provider = self._provider_of(delivery.key)
        outcome = await self._request(
            binding, provider.begin_login(binding, command.redirect_uri, now=self._now_s())
        )
        if not isinstance(outcome, Login):
            raise _failure(outcome)
        flow_id, secret = self._entropy(FLOW_BYTES).hex(), outcome.secret
        await self._secrets.put(flow_name(delivery.key, flow_id), 1, msgspec.json.encode(secret))
        begin = BeginFlow(
            flow_id=flow_id,
            provider=binding.provider,
            redirect_uri=secret.redirect_uri,
            expires_at_millis=secret.expires_at * 1_000,
        )
        await self._ask(FAMILY, delivery.key, begin, LeaseStatus)
        self._metrics.login(binding.provider, "begun")
        prompt = outcome.prompt
        return LoginStarted(
            flow_id=flow_id,
            url=prompt.url,
            user_code=prompt.user_code,
            expires_at=prompt.expires_at,
            interval_s=prompt.interval_s,
        )

    async def finish(self, delivery: Delivery) -> LoginStatus:
        """Complete a login by what the browser brought, or poll a device login once."""
        command = decode_command(delivery.body, FinishLogin, content_type=delivery.content_type)
        lease, flow_id = delivery.key, command.flow_id
        binding, provider = self._provider_of(lease)
        value = await self._secrets.get(flow_name(lease, flow_id), 1)
        if value is None or flow_id in self._in_progress:
            raise Refused(
                "LOGIN_NOT_FOUND",
                f"no login {flow_id[:80]!r} of {lease} is open",
                hint=f"rookery leases login {lease}",
            )
        secret = msgspec.json.decode(value, type=LoginSecret)
        code = _code(command.query, secret)
        self._in_progress.add(flow_id)
        try:
            outcome = await self._request(
                binding, provider.complete_login(binding, secret, code, now=self._now_s())
            )
            return await self._end(lease, flow_id, secret, outcome, binding.provider)
        finally:
            self._in_progress.discard(flow_id)

    async def _end(
        self, lease: str, flow_id: str, secret: LoginSecret, outcome: Outcome, provider: str
    ) -> LoginStatus:
        if isinstance(outcome, RetryLater):
            return LoginStatus(reason=outcome.reason, retry_after_s=outcome.after_s or POLL_S)
        end = EndFlow(flow_id=flow_id, redirect_uri=secret.redirect_uri)
        if isinstance(outcome, Renewed):
            status = await self._ask(FAMILY, lease, LeaseStatusQuery(), LeaseStatus)
            sealed_as = await seal_credential(
                self._secrets, lease, status.next_sealed_as, outcome.credential
            )
            expires_at = outcome.credential.expires_at
            end = msgspec.structs.replace(end, sealed_as=sealed_as, expires_at=expires_at)
        await self._ask(FAMILY, lease, end, LeaseStatus)
        await self._secrets.delete(flow_name(lease, flow_id), 1)
        self._metrics.login(provider, "completed" if end.sealed_as else "failed")
        if isinstance(outcome, LoginNeeded):
            raise _failure(outcome)
        return LoginStatus(done=True, expires_at=end.expires_at)

    def _provider_of(self, lease: str) -> tuple[Binding, LoginProvider]:
        key = LeaseKey.parse(lease)
        binding = self._bindings.get(key.binding)
        if binding is None:
            known = ", ".join(sorted(self._bindings)) or "none"
            raise Refused(
                "LEASE_UNAVAILABLE",
                f"this node has no binding {key.binding}",
                hint=f"add [bindings.{key.binding}]; there are: {known}",
            )
        provider = self._providers[binding.provider]
        if not is_login_provider(provider):
            raise Refused(
                "UNSUPPORTED_FEATURE",
                f"the provider {binding.provider} needs no login",
                hint=f"rookery leases refresh {lease}",
            )
        return msgspec.structs.replace(binding, key=key), provider

    async def _request(self, binding: Binding, request: Any) -> Any:
        try:
            async with asyncio.timeout(binding.timeout_s):
                return await request
        except TimeoutError:
            return RetryLater(0.0, f"{binding.provider} gave no answer in {binding.timeout_s:g} s")

    def _now_s(self) -> float:
        return self._now_ms() / 1_000

    # --- the list ---------------------------------------------------------------------------------

    async def list(self, delivery: Delivery) -> LeaseList:
        query = decode_command(delivery.body, LeasesQuery, content_type=delivery.content_type)
        return await list_leases(self._journal, query, self._now_ms())


async def list_leases(journal: Journal, query: LeasesQuery, now_ms: int) -> LeaseList:
    """All leases of the realm by their keys, folded from their facts."""
    entries: dict[str, LeaseEntry] = {}
    async for page in journal.scan(Filter(FAMILY, query.lease)):
        for stored in page:
            entry = entries.get(stored.entity.key, LeaseEntry())
            for fact in () if stored.quarantined_through else _CODEC.decode(stored.body):
                entry = evolve(entry, fact)
            entries[stored.entity.key] = entry
    lines = (_line(key, entry, now_ms) for key, entry in sorted(entries.items()))
    return LeaseList(leases=tuple(lines))


def _line(key: str, entry: LeaseEntry, now_ms: int) -> ListedLease:
    snapshot = lease_snapshot(entry)
    flows = 0 if entry.lease is None else entry.lease.outstanding_flows
    return ListedLease(
        lease=key,
        phase=snapshot.phase,
        status=auth_status(snapshot, now_ms // 1_000),
        login_required=requires_login(entry),
        expires_at=snapshot.expires_at,
        generation=snapshot.generation,
        published_at_ms=snapshot.credential_published_at_millis,
        waiting_calls=len(entry.waiting),
        logins=flows,
        reason=entry.reason,
        retry_at_ms=entry.retry_at_ms or None,
        may_be_lost=entry.may_be_lost,
    )


def _code(query: str, secret: LoginSecret) -> str:
    """What the browser brought; empty for a device login."""
    if secret.device_code:
        return ""
    code = callback_code(query, secret)
    if code is None:
        raise Refused("INVALID_ARGUMENT", "the browser's callback belongs to another login")
    if isinstance(code, LoginNeeded):
        raise _failure(code)
    return code


def _failure(outcome: RetryLater | LoginNeeded) -> Failed:
    return Failed("LOGIN_FAILED", outcome.reason)
