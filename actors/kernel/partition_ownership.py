"""Which partitions this node works for: claims, fair shares, takeovers.

Exclusive ownership keeps order and saves conflicts; what is journaled does not depend on it (the
journal's expected sequences decide), but what is said without journaling does. It owns claims and
their beat, not what owning means (``on_gain``, ``on_loss``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from rookery.bus.ports import PARTITIONS, Claim, Claims
from rookery.schemas.errors import Failed

__all__ = ["CLAIM_S", "NodeIdentity", "PartitionOwnership", "node_of_holder"]

log = logging.getLogger(__name__)

CLAIM_S = 6
"""How long a claim lives that is not renewed, unless ``ops`` says otherwise."""
HEARTBEATS_PER_CLAIM = 3
JOIN_ATTEMPTS = 20
BUSY_HEARTBEATS_MAX = 5
"""How long a partition with effects under way is kept though another node should have it."""


class NodeIdentity(NamedTuple):
    """This node as other nodes see it in its claims."""

    node: str
    epoch: str
    """Names this process for ever: ``<node>.<what no other process has>``. It holds the claims, so
    two processes with one name never take each other's for their own."""
    presence: bytes
    """Says where it runs, so that a neighbour can tell that it died."""
    is_dead: Callable[[bytes], bool]
    """Whether the process described by a presence is known to be gone."""


def node_of_holder(holder: str) -> str:
    """The name of the node that holds a claim."""
    return holder.rpartition(".")[0] or holder  # Before epochs, the name itself held it.


OwnershipChange = Callable[[frozenset[int]], Awaitable[None]]


class PartitionOwnership:
    """One a node; lives on the loop. Claims are kept by the beat; serving them follows in its own
    time, however long taking up a partition takes. Certainty ends by the clock, not by a beat: a
    beat may hang."""

    def __init__(
        self,
        claims: Claims,
        holder: NodeIdentity,
        *,
        on_gain: OwnershipChange,
        on_loss: OwnershipChange,
        on_expiry: Callable[[], None],
        uptime_s: Callable[[], float],
        claim_s: int = CLAIM_S,
        busy: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """``uptime_s`` goes on while the machine sleeps, as claims do; a loop's time does not.
        ``on_expiry``: called when the claims were not renewed for as long as they live.
        ``busy``: a partition with effects under way is given up last, and not at once."""
        self._claims, self._identity = claims, holder
        self._on_gain, self._on_loss, self._is_busy = on_gain, on_loss, busy
        self._on_expiry = on_expiry
        self._uptime_s, self._claim_s = uptime_s, claim_s
        self._heartbeat_s = claim_s / HEARTBEATS_PER_CLAIM
        self._busy_heartbeats_left = BUSY_HEARTBEATS_MAX
        self._held: dict[int, Claim] = {}
        self._to_release: list[Claim] = []
        """To be freed as soon as they are served no more."""
        self._served: frozenset[int] = frozenset()
        self._must_reacquire = False
        """Others may have owned what is served, or being taken up: it has to be taken up anew."""
        self._membership: Claim | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._reconciling: asyncio.Task[None] | None = None
        self._is_frozen = False
        self._certain_until_s = 0.0
        self._expiring: asyncio.TimerHandle | None = None

    @property
    def owned(self) -> frozenset[int]:
        """Those this node holds the claims of."""
        return frozenset(self._held)

    @property
    def served(self) -> frozenset[int]:
        """Those whose commands are worked off here."""
        return self._served

    @property
    def is_certain(self) -> bool:
        """Whether nobody else can own or have owned what is served: not after a pause longer than
        a claim lives, the machine's sleep included, until all of it is taken up anew."""
        return self._claims_live and not self._must_reacquire

    @property
    def _claims_live(self) -> bool:
        return self._uptime_s() < self._certain_until_s

    async def start(self) -> None:
        """Join, as soon as no other process has this node's name, and serve a first share."""
        await self._join()
        await self._heartbeat()
        self._heartbeat_task = asyncio.get_running_loop().create_task(self._heartbeat_loop())
        if self._reconciling is not None:
            await self._reconciling

    async def freeze(self) -> None:
        """This node is about to leave: it keeps what it holds and begins nothing any more."""
        self._is_frozen = True
        await _cancel(self._reconciling)

    def reacquire_all(self) -> None:
        """Take up anew what is served, as if it had just been gained: all of it, since nothing
        that is said meanwhile gets out."""
        self._must_reacquire = True
        self._reconcile_soon()

    async def stop(self) -> None:
        """Leave: every claim is free at once for the others."""
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
            log.info("claims are left to expire", extra={"code": error.code})

    # --- claims ---------------------------------------------------------------------------------

    async def _join(self) -> None:
        """A process that was killed may have left this name behind; one that is alive keeps it."""
        for _ in range(JOIN_ATTEMPTS):
            if await self._renew_membership():
                return
            await asyncio.sleep((self._claim_s + 1) / JOIN_ATTEMPTS)
        raise self._name_in_use()

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
            hint="give each node a node.name of its own, or none",
        )

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            try:
                await self._heartbeat()
            except Failed as error:
                log.warning("a beat was missed", extra={"code": error.code})
            except Exception:  # Without its beat a node would lose all it holds and not know it.
                log.exception("a beat failed")

    async def _heartbeat(self) -> None:
        try:
            await self._renew()
            if not self._is_frozen:
                async with asyncio.timeout(self._heartbeat_s):
                    await self._rebalance()
        except TimeoutError:
            raise Failed("SERVER_UNREACHABLE", "claims were not listed in time") from None
        finally:
            self._reconcile_soon()

    async def _renew(self) -> None:
        began_s, held = self._uptime_s(), dict(self._held)
        presence = self._identity.presence
        renewals = (self._claims.renew(claim, self._claim_s, presence) for claim in held.values())
        missed: BaseException | None = None
        lost = []
        ends = await asyncio.gather(*renewals, return_exceptions=True)
        for partition, end in zip(held, ends, strict=True):
            if isinstance(end, Claim):
                self._held[partition] = end
            elif isinstance(end, Failed) and end.code == "CLAIM_LOST":
                del self._held[partition]
                lost.append(partition)
            else:
                missed = end
        if lost:
            log.warning("partitions were lost", extra={"partitions": lost})
        if lost or not self._claims_live:
            self._must_reacquire = True
        if missed is not None:
            raise missed
        if not self._to_release:  # Their claims are not renewed.
            self._certain_until_s = began_s + self._claim_s
            if self._expiring is None:
                self._expire_or_wait()

    def _expire_or_wait(self) -> None:
        """What was certain ends at its time, whatever a beat waits for just then."""
        self._expiring = None
        left_s = self._certain_until_s - self._uptime_s()
        if left_s > 0:
            loop = asyncio.get_running_loop()
            self._expiring = loop.call_later(left_s, self._expire_or_wait)
            return
        log.warning("claims were not renewed in time; nothing is done until they are held again")
        self._on_expiry()
        self.reacquire_all()

    async def _rebalance(self) -> None:
        """Hold as many as every other node does."""
        if not await self._renew_membership():
            self._to_release += self._held.values()
            self._held.clear()
            raise self._name_in_use()
        members = [c for c in await self._claims.list("node.") if not self._is_holder_dead(c)]
        share = -(-PARTITIONS // max(1, len(members)))
        if len(self._held) > share:
            self._release_surplus(share)
        elif len(self._held) < share:
            await self._claim_free(share - len(self._held))

    def _release_surplus(self, share: int) -> None:
        """What is busy may finish first, for a while: the next owner would have to find out how far
        its effects came."""
        surplus = sorted(self._held, key=lambda p: (not self._is_busy(p), p))[share:]
        idle = [partition for partition in surplus if not self._is_busy(partition)]
        self._busy_heartbeats_left = (
            BUSY_HEARTBEATS_MAX if len(idle) == len(surplus) else self._busy_heartbeats_left - 1
        )
        for partition in surplus if self._busy_heartbeats_left <= 0 else idle:
            self._to_release.append(self._held.pop(partition))

    async def _claim_free(self, wanted: int) -> None:
        """Claim what is free or left by the dead, starting where other nodes do not."""
        standing = {c.name: c for c in await self._claims.list("partition.")}
        leaving = {int(claim.name.removeprefix("partition.")) for claim in self._to_release}
        start = sum(self._identity.node.encode()) % PARTITIONS
        for step in range(PARTITIONS):
            partition = (start + step) % PARTITIONS
            if partition in self._held or partition in leaving or not wanted:
                continue
            claim = await self._claim(partition, standing.get(f"partition.{partition}"))
            if claim is not None:
                self._held[partition] = claim
                wanted -= 1

    async def _claim(self, partition: int, standing: Claim | None) -> Claim | None:
        name, holder = f"partition.{partition}", self._identity
        is_own = standing is not None and standing.holder == holder.epoch
        if standing is None or is_own:  # Of one's own only the acknowledgement was lost.
            return await self._claims.acquire(name, holder.epoch, self._claim_s, holder.presence)
        return await self._take_from_dead(standing) if self._is_holder_dead(standing) else None

    async def _take_from_dead(self, left: Claim) -> Claim | None:
        holder = self._identity
        return await self._claims.take_from_dead(left, holder.epoch, self._claim_s, holder.presence)

    def _is_holder_dead(self, claim: Claim) -> bool:
        return claim.holder != self._identity.epoch and self._identity.is_dead(claim.value)

    # --- serving --------------------------------------------------------------------------------

    def _reconcile_soon(self) -> None:
        if not self._is_frozen and (self._reconciling is None or self._reconciling.done()):
            self._reconciling = asyncio.get_running_loop().create_task(self._reconcile())

    async def _reconcile(self) -> None:
        """Serve what is held and nothing else; what fails is tried again after the next beat."""
        try:
            while self._must_reacquire or self._to_release or self._served != self.owned:
                await self._stop_serving()
                if not self._claims_live:  # What is held is known after the next beat.
                    return
                if gained := self.owned - self._served:
                    await self._on_gain(gained)
                    self._served |= gained
        except Failed as error:
            log.warning("partitions wait to be served", extra={"code": error.code})
        except Exception:
            log.exception("partitions wait to be served")

    async def _stop_serving(self) -> None:
        """First stop working for what is not ours, then let others have it."""
        surplus, doubted = list(self._to_release), self._must_reacquire  # More may come meanwhile.
        if lost := self._served if doubted else self._served - self.owned:
            await self._on_loss(lost)
            self._served -= lost
        if doubted:  # One that rose meanwhile stands, unless nothing is served that it could mean.
            self._must_reacquire = False
        if surplus:
            await asyncio.gather(*(self._claims.release(claim) for claim in surplus))
            self._to_release = self._to_release[len(surplus) :]


async def _cancel(*tasks: asyncio.Task[None] | None) -> None:
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
