"""The partitions of a node: their ownership, the recovery of their effects, the watermark."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from rookery.bus.ports import PARTITIONS, Claim, Claims
from rookery.schemas.errors import Failed

__all__ = [
    "NodeIdentity",
    "PartitionOwnership",
]

# --- ownership ------------------------------------------------------------------------------------

# ``PartitionOwnership``: which partitions this node serves, by claims with a time to live.
#
# Exclusive ownership keeps commands in order and avoids conflicts. The journal's expected sequences
# protect facts in any case; replies without facts are protected by ownership alone. ``on_gain`` and
# ``on_loss`` define what serving a partition means.


log = logging.getLogger(__name__)

CLAIM_S = 6
"""How long an unrenewed claim lives, unless ``ops`` sets another time."""
CLUSTER_CLAIM_S = 12
"""The same where servers elect leaders: an election takes up to 9 s unless its votes split, no
claim can be renewed meanwhile, and the last renewal may be a heartbeat old. A claim that outlives
the election is not taken over, so no call loses its outcome."""
HEARTBEATS_PER_CLAIM = 3
HEARTBEAT_S_MAX = 2.0
MISSED_PAUSE_S = 0.25
"""After a missed heartbeat: a cluster that elects a leader has one at any moment."""
JOIN_ATTEMPTS = 20
FIRST_HEARTBEATS_MAX = 10
"""How many heartbeats a node that starts may miss: on a busy machine the claims of all partitions
take longer than one."""
BUSY_HEARTBEATS_MAX = 5
"""For how many heartbeats a node keeps a surplus partition with running effects."""


class NodeIdentity(NamedTuple):
    """This node as other nodes see it in its claims."""

    node: str
    """The name of the process, ``<node>`` or ``<node>.<number>``."""
    epoch: str
    """Unique name of this process, ``<name>.<random>``. Claims are held under it, so that two
    processes with one node name never mistake each other's claims for their own."""
    presence: bytes
    """Where the process runs, so that a node on the same machine can detect its death."""
    is_dead: Callable[[bytes], bool]
    """Whether the process described by a presence is known to be dead."""


OwnershipChange = Callable[[frozenset[int]], Awaitable[None]]


class PartitionOwnership:
    """One per node; lives on the loop. The heartbeat renews claims. A separate task serves gained
    partitions, because recovering one may take long. Certainty ends by the clock, since a heartbeat
    may hang."""

    def __init__(
        self,
        claims: Claims,
        holder: NodeIdentity,
        *,
        on_gain: OwnershipChange,
        on_loss: OwnershipChange,
        on_expiry: Callable[[], None],
        uptime_s: Callable[[], float],
        claim_s: int = 0,
        is_cluster: bool = False,
        processes: int = 1,
        is_busy: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """``uptime_s``: a clock that runs while the machine sleeps, as claims expire then too.
        ``on_expiry``: called when no renewal has succeeded for the life of a claim. ``busy``:
        whether a partition has running effects; such a partition is released last. ``processes``
        start together with this one, itself included: its first share is for so many."""
        self._claims, self._identity = claims, holder
        self._on_gain, self._on_loss, self._is_busy = on_gain, on_loss, is_busy
        self._on_expiry = on_expiry
        self._uptime_s = uptime_s
        self._claim_s = claim_s or (CLUSTER_CLAIM_S if is_cluster else CLAIM_S)
        self._heartbeat_s = min(self._claim_s / HEARTBEATS_PER_CLAIM, HEARTBEAT_S_MAX)
        self._members_expected = processes
        self._busy_heartbeats_left = BUSY_HEARTBEATS_MAX
        self._held: dict[int, Claim] = {}
        self._to_release: list[Claim] = []
        """Claims to release once their partitions are no longer served."""
        self._served: frozenset[int] = frozenset()
        self._begun: frozenset[int] = frozenset()
        """The served partitions, and those for which ``on_gain`` failed: the node acts for them,
        too, from its begin until ``on_loss``."""
        self._must_reacquire = False
        """Other nodes may have owned the served partitions in the meantime, so they must be
        recovered."""
        self._membership: Claim | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._reconciling: asyncio.Task[None] | None = None
        self._is_frozen = False
        self._certain_until_s = 0.0
        self._expiring: asyncio.TimerHandle | None = None

    @property
    def owned(self) -> frozenset[int]:
        """The partitions whose claims this node holds."""
        return frozenset(self._held)

    @property
    def served(self) -> frozenset[int]:
        """The partitions whose commands this node processes."""
        return self._served

    @property
    def is_certain(self) -> bool:
        """Whether no other node can own or have owned the served partitions. False after a pause
        longer than a claim lives (including sleep of the machine) until all of them are reacquired.
        """
        return self._uptime_s() < self._certain_until_s and not self._must_reacquire

    @property
    def _claims_live(self) -> bool:
        return self._uptime_s() < self._certain_until_s

    async def start(self) -> None:
        """Join once no other process has this node's name, and serve a first share."""
        await self._join()
        await self._claim_first_share()
        self._heartbeat_task = asyncio.get_running_loop().create_task(self._heartbeat_loop())
        if self._reconciling is not None:
            await self._reconciling

    async def freeze(self) -> None:
        """Prepare to leave: keep the claims and start serving nothing more."""
        self._is_frozen = True
        await _cancel(self._reconciling)

    def reacquire_all(self) -> None:
        """Treat all served partitions as newly gained; until then the node sends no replies."""
        self._must_reacquire = True
        self._reconcile_soon()

    async def stop(self) -> None:
        """Release all claims, so that other nodes can take them at once."""
        await _cancel(self._heartbeat_task, self._reconciling)
        if self._expiring is not None:
            self._expiring.cancel()
        claims = [*self._held.values(), *self._to_release]
        if self._membership is not None:
            claims.append(self._membership)
        self._held.clear()
        self._served = frozenset()
        try:
            await asyncio.gather(*(self._claims.release(claim) for claim in claims))
        except Failed as error:
            log.info("claims not released, they expire", extra={"code": error.code})

    # --- claims ---------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Claim this node's name: a killed process's claim expires, a living one keeps it."""
        for _ in range(JOIN_ATTEMPTS):
            if await self._renew_membership():
                return
            await asyncio.sleep((self._claim_s + 1) / JOIN_ATTEMPTS)
        raise self._name_in_use()

    async def _claim_first_share(self) -> None:
        """Take a heartbeat; what a missed one has claimed is held by the next."""
        for number in range(1, FIRST_HEARTBEATS_MAX + 1):
            try:
                await self._heartbeat()
                return
            except Failed as error:
                if error.code != "SERVER_UNREACHABLE" or number == FIRST_HEARTBEATS_MAX:
                    raise
                log.warning("heartbeat missed", extra={"code": error.code})

    async def _renew_membership(self) -> bool:
        name, holder = f"node.{self._identity.node}", self._identity
        self._membership = await self._claims.acquire(
            name, holder.epoch, self._claim_s, holder.presence
        )
        if self._membership is None:
            for other in await self._claims.list(name):
                if other.name == name and self._is_holder_dead(other):
                    self._membership = await self._take_from_dead(other)
        return self._membership is not None

    def _name_in_use(self) -> Failed:
        return Failed(
            "NODE_NAME_IN_USE",
            f"another process serves this realm as node {self._identity.node}",
            hint="set a different node.name on each node, or none",
        )

    async def _heartbeat_loop(self) -> None:
        pause_s = self._heartbeat_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(MISSED_PAUSE_S, self._heartbeat_s)
            try:
                await self._heartbeat()
                pause_s = self._heartbeat_s
            except Failed as error:
                log.warning("heartbeat missed", extra={"code": error.code})
            except Exception:  # Without heartbeats the node would lose its claims unnoticed.
                log.exception("heartbeat failed")

    async def _heartbeat(self) -> None:
        try:
            await self._renew()
            if not self._is_frozen:
                async with asyncio.timeout(self._heartbeat_s):
                    await self._rebalance()
        except TimeoutError:
            raise Failed(
                "SERVER_UNREACHABLE", f"claims were not listed within {self._heartbeat_s} s"
            ) from None
        finally:
            self._reconcile_soon()

    async def _renew(self) -> None:
        began_s, held = self._uptime_s(), dict(self._held)
        presence = self._identity.presence
        renewals = (self._claims.renew(claim, self._claim_s, presence) for claim in held.values())
        missed: BaseException | None = None
        lost = []
        outcomes = await asyncio.gather(*renewals, return_exceptions=True)
        for partition, outcome in zip(held, outcomes, strict=True):
            if isinstance(outcome, Claim):
                self._held[partition] = outcome
            elif isinstance(outcome, Failed) and outcome.code == "CLAIM_LOST":
                del self._held[partition]
                lost.append(partition)
            else:
                missed = outcome
        if lost:
            log.warning("partitions lost", extra={"partitions": lost})
        if lost or not self._claims_live:
            self._must_reacquire = True
        if missed is not None:
            raise missed
        if not self._to_release:  # Their claims are not renewed.
            self._certain_until_s = began_s + self._claim_s
            if self._expiring is None:
                self._expire_or_wait()

    def _expire_or_wait(self) -> None:
        """End certainty at its time, even while a heartbeat hangs."""
        self._expiring = None
        left_s = self._certain_until_s - self._uptime_s()
        if left_s > 0:
            loop = asyncio.get_running_loop()
            self._expiring = loop.call_later(left_s, self._expire_or_wait)
            return
        log.warning("claims expired: commands wait until they are reacquired")
        self._on_expiry()
        self.reacquire_all()

    async def _rebalance(self) -> None:
        """Hold a fair share: the partitions divided by the nodes."""
        if not await self._renew_membership():
            self._to_release += self._held.values()
            self._held.clear()
            raise self._name_in_use()
        members = [c for c in await self._claims.list("node.") if not self._is_holder_dead(c)]
        share = -(-PARTITIONS // max(self._members_expected, len(members)))
        self._members_expected = 1
        if len(self._held) > share:
            self._release_surplus(share)
        elif len(self._held) < share:
            await self._claim_free(share - len(self._held))

    def _release_surplus(self, share: int) -> None:
        """Release the surplus. Busy partitions may finish first, for some heartbeats: otherwise
        their next owner has to find out how far the effects got."""
        surplus = sorted(self._held, key=lambda p: (not self._is_busy(p), p))[share:]
        idle = [partition for partition in surplus if not self._is_busy(partition)]
        self._busy_heartbeats_left = (
            BUSY_HEARTBEATS_MAX if len(idle) == len(surplus) else self._busy_heartbeats_left - 1
        )
        for partition in surplus if self._busy_heartbeats_left <= 0 else idle:
            self._to_release.append(self._held.pop(partition))

    async def _claim_free(self, count: int) -> None:
        """Claim partitions that are free or whose owner is dead; each node starts at another
        one."""
        claims = {c.name: c for c in await self._claims.list("partition.")}
        leaving = {int(claim.name.removeprefix("partition.")) for claim in self._to_release}
        start = sum(self._identity.node.encode()) % PARTITIONS
        for step in range(PARTITIONS):
            partition = (start + step) % PARTITIONS
            if partition in self._held or partition in leaving or not count:
                continue
            claim = await self._claim(partition, claims.get(f"partition.{partition}"))
            if claim is not None:
                self._held[partition] = claim
                count -= 1

    async def _claim(self, partition: int, current: Claim | None) -> Claim | None:
        name, holder = f"partition.{partition}", self._identity
        is_own = current is not None and current.holder == holder.epoch
        if current is None or is_own:  # Only the acknowledgement of this process's claim was lost.
            return await self._claims.acquire(name, holder.epoch, self._claim_s, holder.presence)
        return await self._take_from_dead(current) if self._is_holder_dead(current) else None

    async def _take_from_dead(self, claim: Claim) -> Claim | None:
        holder = self._identity
        return await self._claims.take_from_dead(
            claim, holder.epoch, self._claim_s, holder.presence
        )

    def _is_holder_dead(self, claim: Claim) -> bool:
        return claim.holder != self._identity.epoch and self._identity.is_dead(claim.value)

    # --- serving --------------------------------------------------------------------------------

    def _reconcile_soon(self) -> None:
        if not self._is_frozen and (self._reconciling is None or self._reconciling.done()):
            self._reconciling = asyncio.get_running_loop().create_task(self._reconcile())

    async def _reconcile(self) -> None:
        """Serve exactly the partitions held; a failure is retried after the next heartbeat."""
        try:
            while self._must_reacquire or self._to_release or not self._is_settled:
                await self._stop_serving()
                if not self._claims_live:  # The next heartbeat shows which claims are held.
                    return
                if gained := self.owned - self._served:
                    self._begun |= gained
                    await self._on_gain(gained)
                    self._served |= gained
        except Failed as error:
            log.warning("partitions not served, retrying", extra={"code": error.code})
        except Exception:
            log.exception("partitions not served, retrying")

    @property
    def _is_settled(self) -> bool:
        return self._served == self._begun == self.owned

    async def _stop_serving(self) -> None:
        """Stop serving lost partitions, then release the surplus claims."""
        surplus = list(self._to_release)  # A heartbeat may add more meanwhile.
        must_reacquire = self._must_reacquire
        if lost := self._begun if must_reacquire else self._begun - self.owned:
            await self._on_loss(lost)
            self._served -= lost
            self._begun -= lost
        if must_reacquire:  # Set again meanwhile, it is lost only if no partition is served.
            self._must_reacquire = False
        if surplus:
            await asyncio.gather(*(self._claims.release(claim) for claim in surplus))
            self._to_release = self._to_release[len(surplus) :]


async def _cancel(*tasks: asyncio.Task[None] | None) -> None:
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
