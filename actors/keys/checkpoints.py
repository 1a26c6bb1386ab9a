"""Checkpoints: what nodes sign, as bytes, and the writer that signs it. Proofs are pure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha3_256
from typing import Final

from msgspec.structs import asdict, replace

from rookery.actors.keys.ed25519 import SigningKey
from rookery.bus.ports import AppendRequest, TaskSet
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.errors import CodedError
from rookery.schemas.facts.node import Checkpoint

__all__ = [
    "CheckpointWriter",
    "Head",
    "checkpoint_bytes",
    "checkpoint_digest",
    "head_path",
    "heads_root",
    "vouched_bytes",
]

# --- proofs ---------------------------------------------------------------------------------------

# What nodes sign, as bytes, and the tree over the heads of entities. Pure.
#
# A head is the chain digest of an entity's last message, and contains all of its earlier ones. A
# checkpoint signs the root of a tree over the heads of the entities that changed, so that one head
# can be proven by the path from it to the root, without the others. ``ops/examples/run_proof``
# computes the same without this package.


CHECKPOINT_DOMAIN: Final = "rookery.node.checkpoint.v1"
VOUCHER_DOMAIN: Final = "rookery.node.key.v1"
_LEAF, _NODE = b"\0", b"\1"
_ENVELOPE: Final = frozenset(Fact.__struct_fields__)

Head = tuple[EntityId, str]
"""An entity and the chain digest of its last message."""


def checkpoint_bytes(realm: str, checkpoint: Checkpoint) -> bytes:
    """What a node signs: all fields of a checkpoint but those of the envelope, and the realm."""
    signed = {
        name: value
        for name, value in asdict(checkpoint).items()
        if name not in _ENVELOPE and name != "signature"
    }
    return canonical_json({"domain": CHECKPOINT_DOMAIN, "realm": realm, **signed})


def checkpoint_digest(realm: str, checkpoint: Checkpoint) -> str:
    """The name by which the next checkpoint, and an anchor, link to this one."""
    return digest_bytes(checkpoint_bytes(realm, checkpoint))


def vouched_bytes(realm: str, public_key: str) -> bytes:
    """What the root key or an operator signs to vouch for a node's key."""
    return canonical_json({"domain": VOUCHER_DOMAIN, "realm": realm, "public_key": public_key})


def heads_root(heads: Iterable[Head]) -> str:
    """The root over heads, in the order of their entities' names; empty without any."""
    level = _leaves(heads)
    while len(level) > 1:
        level = _parents(level)
    return level[0].hex() if level else ""


def head_path(heads: Sequence[Head], entity: EntityId) -> list[str]:
    """How one head leads to the root: at each level ``l`` or ``r`` and the digest on that side;
    nothing where there is none."""
    names = sorted(str(one) for one, _ in heads)
    index, level, path = names.index(str(entity)), _leaves(heads), []
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            path.append(("l" if sibling < index else "r") + level[sibling].hex())
        level, index = _parents(level), index // 2
    return path


def _leaves(heads: Iterable[Head]) -> list[bytes]:
    named = sorted((str(entity), chain) for entity, chain in heads)
    return [sha3_256(_LEAF + f"{name} {chain}".encode()).digest() for name, chain in named]


def _parents(level: list[bytes]) -> list[bytes]:
    """The level above; the last digest of an odd number rises as it is."""
    pairs = zip(level[::2], level[1::2], strict=False)
    parents = [sha3_256(_NODE + left + right).digest() for left, right in pairs]
    return [*parents, level[-1]] if len(level) % 2 else parents


# --- checkpoint writer ----------------------------------------------------------------------------

# ``CheckpointWriter``: signs what this node has appended, once a minute and when it stops.
#
# A message that no checkpoint of its node covers was appended after the node's last one, or by
# a forger with a node's credential but not its key. Nothing is written while nothing is
# appended. Only this node's appends count, so a message of another writer is never signed by
# accident. Lives on the loop.


log = logging.getLogger(__name__)

CHECKPOINT_S: Final = 60.0
FINISH_S: Final = 3.0
UNCERTAIN_MAX: Final = 1_000


@dataclass(slots=True)
class _Span:
    """Appends in a row."""

    heads: dict[EntityId, tuple[int, str]] = field(default_factory=dict)
    """The last message of each entity: its sequence and chain digest."""
    messages: int = 0
    first: int = 0
    last: int = 0

    def add(self, entity: EntityId, sequence: int, chain: str) -> None:
        known = self.heads.get(entity)
        if known is None or known[0] < sequence:
            self.heads[entity] = sequence, chain
        self.messages += 1
        self.last = max(self.last, sequence)
        if sequence < self.first or not self.first:
            self.first = sequence

    def merge(self, later: _Span) -> None:
        """Add the appends of the span after this one."""
        self.heads |= later.heads
        self.messages += later.messages
        self.first = self.first or later.first
        self.last = max(self.last, later.last)


class CheckpointWriter:
    """One per node."""

    def __init__(
        self,
        node: str,
        realm: str,
        key: SigningKey | None,
        record: Callable[[Fact], Awaitable[object]],
    ) -> None:
        """``key``: ``None`` signs nothing. ``record``: commits a fact of the family ``node``."""
        self._node, self._realm, self._key, self._record = node, realm, key, record
        self._tasks = TaskSet()
        self._written_s: float | None = None
        self._span = _Span()
        self._closing: _Span | None = None
        """The span that a checkpoint is being made of."""
        self._uncertain: list[str] = []
        self._last: Checkpoint | None = None

    def add(self, append: AppendRequest, sequence: int, facts: list[Fact]) -> None:
        """Add a message that this node has appended."""
        if self._key is None or all(isinstance(fact, Checkpoint) for fact in facts):
            return
        closing = self._closing
        span = self._span if closing is None or sequence > closing.last else closing
        span.add(append.entity, sequence, append.chain)

    def add_uncertain(self, append: AppendRequest) -> None:
        """Add a message that may be stored, because another node's term began meanwhile."""
        if self._key is not None and len(self._uncertain) < UNCERTAIN_MAX:
            self._uncertain.append(append.chain)

    def write_if_due(self, uptime_s: float, settle: Callable[[], Awaitable[None]]) -> None:
        """Begin a checkpoint if the last one is a minute old. ``settle``: waits until the appends
        that are in flight have their outcome."""
        if self._written_s is None:
            self._written_s = uptime_s
        if uptime_s - self._written_s >= CHECKPOINT_S:
            self._written_s = uptime_s
            self._tasks.start(self.write(settle))

    async def finish(self, settle: Callable[[], Awaitable[None]]) -> None:
        """Write the last checkpoint, unless the journal does not accept it in time."""
        try:
            async with asyncio.timeout(FINISH_S):
                await self._tasks.wait_idle()
                await self.write(settle)
        except TimeoutError:
            log.warning("no last checkpoint: the journal does not accept it")
        await self._tasks.cancel()

    async def write(self, settle: Callable[[], Awaitable[None]]) -> None:
        """Append a checkpoint, if anything was appended since the last one. After an error the
        next one covers what this one should have."""
        if self._key is None or self._closing is not None or not self._span.messages:
            return
        closing = self._closing = self._span
        self._span = _Span()
        await settle()
        checkpoint = self._sign(self._key, closing)
        count = len(self._uncertain)
        try:
            await self._record(checkpoint)
        except CodedError as error:
            closing.merge(self._span)
            self._span = closing
            log.warning("checkpoint not written", extra={"code": error.code})
        else:
            self._last = checkpoint
            del self._uncertain[:count]
        finally:
            self._closing = None

    def _sign(self, key: SigningKey, span: _Span) -> Checkpoint:
        last = self._last
        checkpoint = Checkpoint(
            node=self._node,
            number=1 if last is None else last.number + 1,
            start=span.first - 1 if last is None else last.sequence,
            sequence=span.last,
            messages=span.messages,
            root=heads_root((entity, chain) for entity, (_, chain) in span.heads.items()),
            previous="" if last is None else checkpoint_digest(self._realm, last),
            uncertain=tuple(self._uncertain),
            key_id=key.key_id,
        )
        return replace(
            checkpoint, signature=key.sign_bytes(checkpoint_bytes(self._realm, checkpoint))
        )
