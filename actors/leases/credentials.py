"""What a node knows of the realm's leases, and the credentials that its calls get.

A lease may belong to another node. So every node folds the facts of the leases that its tools name:
it reads the history of a lease when a call first needs it, and follows it from then on. The
credential itself is read from the realm's secrets, in the generation that the last fact names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from rookery.actors.credentials import CredentialWait
from rookery.actors.leases.lease_rules import LeaseEntry, evolve
from rookery.actors.leases.provider import CurrentCredential, LeaseCredential, LeaseSecrets
from rookery.actors.leases.refresh_rules import (
    is_current,
    requires_login,
    secret_name,
    short_name,
    wait_code,
)
from rookery.bus.ports import (
    Bus,
    BusLoop,
    Filter,
    StoredMessage,
    TaskSet,
    Timer,
    Timers,
    at_once_ms,
)
from rookery.schemas.calls import WAITING_FOR_LEASE
from rookery.schemas.codec import FactCodec, encode_json
from rookery.schemas.commands import LeaseRejected
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CODES, CodedError, Failed
from rookery.schemas.facts import lease as facts

__all__ = ["LeaseCredentials", "LeaseStates"]

log = logging.getLogger(__name__)

FAMILY: Final = "lease"
RETRY_S: Final = 1.0
CHANGE_S: Final = 5.0
"""How long an attempt waits for a fact of its lease: of a newer credential, if the older one is
deleted, or of the credential that it reported as rejected."""
_CODEC: FactCodec[facts.LeaseFact] = FactCodec(facts.LEASE_FACTS)


class LeaseStates:
    """The states of the leases that this node's tools name. Changed on the bus's loop."""

    def __init__(self, bus: Bus, loop: BusLoop, now_ms: Callable[[], int]) -> None:
        self._bus, self._loop, self._now_ms = bus, loop, now_ms
        self._entries: dict[str, tuple[LeaseEntry, int]] = {}
        """With the position of the last message folded."""
        self._loads: dict[str, list[StoredMessage]] = {}
        """By lease that is read now: its messages that arrived meanwhile."""
        self._position = 0
        self._changed = asyncio.Event()
        self._tasks = TaskSet()

    def key_of(self, binding: str) -> str:
        """The key of the lease of ``binding`` or ``binding:profile``."""
        return f"{self._bus.realm}:{binding}"

    def gate(self, binding: str) -> CredentialWait | None:
        """What a call waits for; ``None`` if it may be made. A lease that this node does not know
        yet is left to its owner, who ends the wait at once if the credential is fresh."""
        key = self.key_of(binding)
        known = self._entries.get(key)
        if known is None:
            self._loop.call_soon(self._begin_load, key)
            return CredentialWait(key, WAITING_FOR_LEASE)
        code = wait_code(known[0], self._now_ms())
        return CredentialWait(key, code) if code else None

    async def state_of(self, key: str) -> LeaseEntry:
        """The state of a lease, read from the journal if need be."""
        while (known := self._entries.get(key)) is None:
            self._begin_load(key)
            await self._next_change()
        return known[0]

    async def wait_for_change(self) -> None:
        """Wait until a lease changes, but not for long."""
        try:
            async with asyncio.timeout(CHANGE_S):
                await self._next_change()
        except TimeoutError:
            return

    async def wait_until_rejected(self, key: str, generation: int) -> None:
        """Wait for the fact that a server refused the credential of this generation, or for one
        that names another, but not for long."""
        try:
            async with asyncio.timeout(CHANGE_S):
                while is_current(await self.state_of(key), generation):
                    await self._next_change()
        except TimeoutError:
            log.warning("rejected credential not acknowledged", extra={"key": key})

    async def open(self, bindings: Iterable[str]) -> None:
        """Begin to follow from the journal's end; read the leases of these bindings."""
        self._position = await self._bus.journal.end()
        for binding in bindings:
            self._begin_load(self.key_of(binding))

    async def run(self) -> None:
        """Follow every lease until cancelled. After an error that may have cost a fact, all leases
        are read again."""
        while True:
            try:
                async for page in self._bus.feed.follow(Filter(FAMILY), self._position):
                    for stored in page:
                        self._on_message(stored)
            except Exception as error:
                code = error.code if isinstance(error, CodedError) else type(error).__name__
                log.warning("leases not followed", extra={"code": code})
                if not (code in CODES and CODES[code].retryable):
                    self._entries.clear()
            await asyncio.sleep(RETRY_S)

    def _begin_load(self, key: str) -> None:
        if key not in self._loads and key not in self._entries:
            self._loads[key] = []
            self._tasks.start(self._load(key))

    async def _load(self, key: str) -> None:
        try:
            entry, position = LeaseEntry(), 0
            for stored in await self._bus.journal.read(EntityId(FAMILY, key)):
                entry, position = _folded(entry, stored), stored.sequence
            for stored in self._loads[key]:
                if stored.sequence > position:
                    entry, position = _folded(entry, stored), stored.sequence
            self._entries[key] = entry, position
        except CodedError as error:
            log.warning("lease not read", extra={"key": key, "code": error.code})
            await asyncio.sleep(RETRY_S)
        finally:
            del self._loads[key]
            self._notify()

    def _on_message(self, stored: StoredMessage) -> None:
        key, self._position = stored.entity.key, stored.sequence
        if key in self._loads:
            self._loads[key].append(stored)
        elif (known := self._entries.get(key)) is not None and stored.sequence > known[1]:
            self._entries[key] = _folded(known[0], stored), stored.sequence
            self._notify()

    async def _next_change(self) -> None:
        await self._changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class LeaseCredentials:
    """The port ``CredentialSource`` of tools, for the attempts of calls on this node."""

    def __init__(
        self, timers: Timers, states: LeaseStates, secrets: LeaseSecrets, now_ms: Callable[[], int]
    ) -> None:
        self._timers, self._states, self._secrets = timers, states, secrets
        self._now_ms = now_ms
        self._opened: dict[str, tuple[int, LeaseCredential]] = {}
        """By lease: the credential read last, and what it is sealed as."""

    async def get(self, binding: str) -> CurrentCredential:
        """The present credential. ``LEASE_REAUTH_REQUIRED`` if there is none any more,
        ``LEASE_UNAVAILABLE`` if it cannot be read."""
        key = self._states.key_of(binding)
        for _ in range(2):
            entry = await self._states.state_of(key)
            if not entry.sealed_as or requires_login(entry):
                raise Failed(
                    "LEASE_REAUTH_REQUIRED",
                    f"the lease {key} has no valid credential",
                    hint=f"rookery leases login {key}",
                )
            if (credential := await self._open(key, entry.sealed_as)) is not None:
                return CurrentCredential(credential, entry.generation)
            await self._states.wait_for_change()
        raise Failed("LEASE_UNAVAILABLE", f"the realm's secrets lack the credential of {key}")

    async def get_past(self, binding: str, since_ms: int) -> tuple[CurrentCredential, ...]:
        """The credentials that calls may have had since then. ``LEASE_UNAVAILABLE`` if one of them
        may have been deleted."""
        key = self._states.key_of(binding)
        entry = await self._states.state_of(key)
        oldest_ms = entry.credential_published_at_millis
        if entry.sealed_before:
            oldest_ms = entry.published_before_millis
        is_first = entry.generation == 1
        if not entry.sealed_as or not (is_first or (oldest_ms and oldest_ms <= since_ms)):
            raise Failed("LEASE_UNAVAILABLE", f"an older credential of {key} was deleted")
        found: list[CurrentCredential] = []
        for number in filter(None, (entry.sealed_as, entry.sealed_before)):
            if (credential := await self._read(key, number)) is None:
                raise Failed("LEASE_UNAVAILABLE", f"the realm's secrets lack a credential of {key}")
            found.append(CurrentCredential(credential, entry.generation))
        return tuple(found)

    async def reject(self, binding: str, generation: int) -> None:
        """Tell the owner of the lease, durably, that a server refused this credential. Then wait,
        not for long, for its fact: the next call of the same program must not get it again."""
        key = self._states.key_of(binding)
        timer = Timer(
            id=f"lease_rejected.{short_name(key)}.{generation}",
            due_ms=at_once_ms(self._now_ms()),
            verb="lease_rejected",
            key=key,
            body=encode_json(LeaseRejected(credential=generation)),
        )
        await self._timers.arm(timer)
        await self._states.wait_until_rejected(key, generation)

    async def _open(self, key: str, sealed_as: int) -> LeaseCredential | None:
        opened = self._opened.get(key)
        if opened is not None and opened[0] == sealed_as:
            return opened[1]
        credential = await self._read(key, sealed_as)
        if credential is not None:
            self._opened[key] = sealed_as, credential
        return credential

    async def _read(self, key: str, sealed_as: int) -> LeaseCredential | None:
        value = await self._secrets.get(secret_name(key), sealed_as)
        return None if value is None else msgspec.json.decode(value, type=LeaseCredential)


def _folded(entry: LeaseEntry, stored: StoredMessage) -> LeaseEntry:
    if stored.quarantined_through:
        return entry
    for fact in _CODEC.decode(stored.body):
        entry = evolve(entry, fact)
    return entry
