"""What nodes sign, as bytes, and the tree over the heads of entities. Pure.

A head is the chain digest of an entity's last message, and contains all of its earlier ones. A
checkpoint signs the root of a tree over the heads of the entities that changed, so that one head
can be proven by the path from it to the root, without the others. ``ops/examples/run_proof``
computes the same without this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha3_256
from typing import Final

from msgspec.structs import asdict

from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.facts.node import Checkpoint

__all__ = [
    "Head",
    "checkpoint_bytes",
    "checkpoint_digest",
    "head_path",
    "heads_root",
    "vouched_bytes",
]

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
