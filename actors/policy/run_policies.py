"""The policies of runs: the node's own, and those that runs of other nodes, or older ones, keep."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, UnsetType

from rookery.actors.policy.decision import Escalation, RunPolicy
from rookery.bus.ports import BlobReader, Blobs
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed
from rookery.schemas.protection.policy import PolicySettings, decode_policy, encode_policy

__all__ = ["RunPolicies"]

POLICIES_MAX: Final = 64
"""In memory; a parked run that resumes reads its own again."""


class RunPolicies:
    """One per node. Read on any thread, loaded on the bus's loop."""

    def __init__(
        self,
        blobs: BlobReader,
        settings: PolicySettings = PolicySettings(),  # noqa: B008 - frozen.
        escalation: Escalation = Escalation(),  # noqa: B008 - frozen.
    ) -> None:
        self._blobs, self._escalation = blobs, escalation
        self.pinned: str | UnsetType = UNSET
        """The digest that runs which start now keep; unset for the default policy."""
        if settings != PolicySettings():
            self.pinned = digest_bytes(encode_policy(settings))
        self.current = RunPolicy(settings, self.pinned or "", escalation)
        self._default = RunPolicy(PolicySettings(), "", escalation)
        self._known: dict[str, RunPolicy] = {}

    async def store(self, blobs: Blobs) -> None:
        """Store the node's policy, before a run keeps its digest."""
        if self.pinned is not UNSET:
            await blobs.put(encode_policy(self.current.settings))

    def get(self, digest: str | UnsetType) -> RunPolicy:
        """The policy of a run in progress; its execution has loaded it."""
        if digest is UNSET:
            return self._default
        if digest == self.pinned:
            return self.current
        found = self._known.get(digest)
        if found is None:
            raise Failed("CONFLICT", "the policy of the run is not loaded any more")
        return found

    async def load(self, digest: str | UnsetType) -> RunPolicy:
        """The policy, read from the blob store if need be."""
        if digest in (UNSET, self.pinned):
            return self.get(digest)
        found = self._known.get(digest)
        if found is None:
            settings = decode_policy(await self._blobs.get(digest))
            found = RunPolicy(settings, digest, self._escalation)
        others = {one: policy for one, policy in self._known.items() if one != digest}
        while len(others) >= POLICIES_MAX:
            del others[next(iter(others))]
        self._known = {**others, digest: found}  # At once: actors read it. The newest are last.
        return found
