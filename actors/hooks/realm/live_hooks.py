"""The hooks of the realm on one node: it follows their facts, and serves the verbs ``hooks`` and
``hooked``.

Before a change is recorded, the node that owns the realm's key has tried each executor that will be
enforced or audited, so that no guard is registered that nothing serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec.structs import replace

from rookery.actors.hooks.decider import HooksDecider, HooksRecorded, ReadHooks, check_realm_key
from rookery.actors.hooks.executors import ExternalExecutor
from rookery.actors.hooks.node_hooks import NodeHooks
from rookery.actors.hooks.realm.realm_hooks import RealmHooks, evolve_hooks, hooks_after
from rookery.actors.kernel.executors import AskActor, QueryHandler
from rookery.bus.ports import Bus, Delivery, EntityFollower, StoredMessage
from rookery.schemas.codec import decode_command
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.hooks import (
    ChangeHooks,
    HookActivity,
    HookExecutorKind,
    HookList,
    HookReceipt,
    HookRegistration,
    HooksQuery,
    ListedHook,
)
from rookery.schemas.ids import REALM_KEY

__all__ = ["HookChanges", "LiveHooks"]

WAIT_S: Final = 10.0
_FAMILY: Final = HooksDecider.family


ExecutorOpener = Callable[[HookRegistration], ExternalExecutor]


class LiveHooks(EntityFollower):
    """One per node; used on the bus's loop."""

    name = "hooks"
    when_unavailable = "no run starts, because a hook may be missing"

    def __init__(
        self,
        bus: Bus,
        hooks: NodeHooks,
        openers: Mapping[type[HookExecutorKind], ExecutorOpener],
    ) -> None:
        """``openers``: of executors outside of the node, by their kind."""
        super().__init__(bus, EntityId(_FAMILY, REALM_KEY))
        self.hooks, self._openers = hooks, openers
        self.known = RealmHooks()
        self.activity: Callable[[], Awaitable[Mapping[str, HookActivity]]] = _no_activity
        """What the journal says of hooks, by id; set once."""
        self._forms: dict[str, HookRegistration] = {}

    def open_executor(self, registration: HookRegistration) -> ExternalExecutor | None:
        """An executor outside of the node; ``None`` for a hook that needs none."""
        opener = self._openers.get(type(registration.executor))
        return None if opener is None else opener(registration)

    async def wait_for(self, sequence: int) -> None:
        """Wait until this node has the hooks of this change, or of a later one."""
        if not await self.wait_until(lambda: self.known.sequence >= sequence, WAIT_S):
            text = f"change {sequence} of the hooks is recorded, and has not reached this node"
            raise Failed("NODE_FAILED", text)

    # --- following --------------------------------------------------------------------------------

    def reset(self) -> None:
        self.known, self._forms = RealmHooks(), {}

    def apply(self, stored: StoredMessage) -> None:
        for fact in HooksDecider.codec.decode(stored.body):
            self.known = evolve_hooks(self.known, fact)
            if (present := self.known.hooks.get(fact.hook_id.as_str())) is not None:
                self._forms[present.registration.digest()] = present.registration
                self._open(present.registration)
        if not self.unavailable_reason:
            self._publish()

    async def refresh(self) -> None:
        await super().refresh()
        self._publish()

    def _on_error(self, error: Exception) -> None:
        super()._on_error(error)
        if self.unavailable_reason:
            self.hooks.problem = f"the realm's hooks are not known: {self.unavailable_reason}"

    def _open(self, registration: HookRegistration) -> None:
        """The last form of a hook says where it is invoked, also for runs with an earlier form."""
        if (executor := self.open_executor(registration)) is not None:
            self.hooks.executors.register(executor)

    def _publish(self) -> None:
        realm = {name: one.registration for name, one in self.known.hooks.items()}
        self.hooks.follow(realm, self._forms)
        self.notify()


async def _no_activity() -> Mapping[str, HookActivity]:
    return {}


class HookChanges:
    """One per node; used on the bus's loop."""

    def __init__(self, ask: AskActor, live: LiveHooks) -> None:
        self._ask, self._live = ask, live
        self._lock = asyncio.Lock()

    @property
    def queries(self) -> Mapping[str, QueryHandler]:
        return {"hooks": self.change, "hooked": self.list_hooks}

    async def change(self, delivery: Delivery) -> HookReceipt:
        """Record a change. When this returns, the node has it; the others do as soon as the fact
        reaches them. A repeated change leaves no fact and gets the same reply."""
        check_realm_key(delivery.key)
        change = decode_command(delivery.body, ChangeHooks, content_type=delivery.content_type)
        async with self._lock:
            return await self._change(replace(change, actor=change.actor or delivery.by))

    async def _change(self, change: ChangeHooks) -> HookReceipt:
        reply = await self._ask(_FAMILY, REALM_KEY, ReadHooks(), HooksRecorded)
        after = hooks_after(reply.hooks, change)
        self._live.hooks.check(after)
        names = {*change.modes, *(one.spec.hook_id.as_str() for one in change.add)}
        begun = [after[name] for name in sorted(names) if after[name].is_enabled]
        await asyncio.gather(*map(self._try, begun))
        reply = await self._ask(_FAMILY, REALM_KEY, change, HooksRecorded)
        await self._live.wait_for(reply.hooks.sequence)
        shown = tuple(one for one in await self._listed() if _id_of(one) in names)
        return HookReceipt(sequence=reply.hooks.sequence, hooks=shown)

    async def list_hooks(self, delivery: Delivery) -> HookList:
        """The hooks of this node's registry and those of the realm, as this node has them."""
        check_realm_key(delivery.key)
        query = decode_command(delivery.body, HooksQuery, content_type=delivery.content_type)
        shown = [one for one in await self._listed() if query.hook in (None, _id_of(one))]
        if query.probe:
            shown = list(await asyncio.gather(*map(self._probed, shown)))
        return HookList(sequence=self._live.known.sequence, hooks=tuple(shown))

    async def _probed(self, listed: ListedHook) -> ListedHook:
        """With the reason if nothing invokes it."""
        try:
            if listed.registration.is_enabled:
                await self._try(listed.registration)
        except Refused as refusal:
            return replace(listed, problem=refusal.message)
        return listed

    async def _try(self, registration: HookRegistration) -> None:
        """Raise ``Refused`` if nothing could invoke the hook."""
        executor = self._live.open_executor(registration)
        if executor is not None:
            await executor.probe()
        elif fault := self._live.hooks.fault_of(registration):
            raise _missing(registration, fault)

    async def _listed(self) -> list[ListedHook]:
        activity = await self._live.activity()
        hooks, known = self._live.hooks, self._live.known.hooks
        listed = []
        for one in hooks.registrations:
            name = one.spec.hook_id.as_str()
            of_realm = known.get(name)
            listed.append(
                ListedHook(
                    registration=one,
                    sequence=0 if of_realm is None else of_realm.sequence,
                    actor="" if of_realm is None else of_realm.actor,
                    digest=one.digest(),
                    activity=activity.get(name, HookActivity()),
                    problem=_missing(one, fault).message if (fault := hooks.fault_of(one)) else "",
                )
            )
        return listed


def _id_of(listed: ListedHook) -> str:
    return listed.registration.spec.hook_id.as_str()


def _missing(registration: HookRegistration, fault: str) -> Refused:
    return Refused(
        "HOOK_EXECUTOR_MISSING",
        f"hook {registration.spec.hook_id.as_str()[:80]}: {fault[:400]}",
        hint="rookery up --tools MODULE:OBJECT with a registry that has the function",
    )
