"""The proof of one run: a file that a program without Rookery can check.

It has the messages of the run's session, from the run's first to a head that a checkpoint covers,
the checkpoints with the path from each head to the signed root, the facts with the nodes' keys, and
all changes of approvers. Messages of other runs of the session that lie between are among them,
because a chain of digests needs every body. ``ops/examples/run_proof`` checks it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from rookery.actors.keys.checkpoints import Head, head_path
from rookery.bus.journal_export import seal_line
from rookery.bus.ports import StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.digest import ZERO_CHAIN
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts.node import NODE_FACTS, Checkpoint, NodeFact, Started

__all__ = ["ProofParts", "ScanAfter", "prove_run"]

FORMAT = 1
_NODES: FactCodec[NodeFact] = FactCodec(NODE_FACTS)

ScanAfter = Callable[[int], AsyncIterator[list[StoredMessage]]]
"""Reads the journal above a sequence."""


class ProofParts(NamedTuple):
    """What a proof is made of."""

    realm: str
    run: str
    session: str
    of_session: Sequence[StoredMessage]
    """All messages of the run's session."""
    of_nodes: Sequence[StoredMessage]
    of_approvers: Sequence[StoredMessage]


class _Head(msgspec.Struct):
    kind: str
    rookery_proof: int
    realm: str
    run: str
    session: str


class _Message(msgspec.Struct):
    kind: str
    sequence: int
    entity: str
    previous: str
    """The chain digest before it."""
    chain: str
    body: str


class _Covered(msgspec.Struct):
    kind: str
    entity: str
    chain: str
    """Of the entity's message that is the head."""
    checkpoint: int
    """Sequence of the message with the checkpoint."""
    path: list[str]


class _ProofEnd(msgspec.Struct):
    kind: str
    lines: int


class _FactView(msgspec.Struct):
    source: str = ""
    run: str = ""


_decode = msgspec.json.Decoder(list[_FactView]).decode


class _Signed(NamedTuple):
    stored: StoredMessage
    fact: Checkpoint
    started: StoredMessage
    """The message with the node's key."""


async def prove_run(parts: ProofParts, scan: ScanAfter) -> list[bytes]:
    """The lines of the proof; ``Refused`` if no checkpoint covers the run yet."""
    checkpoints = _checkpoints(parts.of_nodes)
    heads: dict[int, list[Head]] = {}
    used: dict[int, _Signed] = {}
    messages: list[_Message] = []
    covered: list[_Covered] = []
    for entity, chained in _by_entity(parts.of_session).items():
        found = [place for place, (one, _) in enumerate(chained) if _is_of(one, parts.run)]
        if not found:
            continue
        signed = _covering(checkpoints, chained[found[-1]][0], parts.run)
        sequence = signed.stored.sequence
        used[sequence] = signed
        if sequence not in heads:
            heads[sequence] = await _heads(signed.fact, scan)
        chain = dict(heads[sequence])[entity]
        last = next(place for place, (one, _) in enumerate(chained) if one.chain == chain)
        messages += [_message(*one) for one in chained[found[0] : last + 1]]
        path = head_path(heads[sequence], entity)
        covered.append(_Covered("covered", str(entity), chain, sequence, path))
    of_nodes = {
        stored.sequence for signed in used.values() for stored in (signed.started, signed.stored)
    }
    approvers = [_message(*one) for one in _chained(parts.of_approvers)]
    return _sealed(
        [
            _Head("head", FORMAT, parts.realm, parts.run, parts.session),
            *approvers,
            *(_message(*one) for one in _chained(parts.of_nodes) if one[0].sequence in of_nodes),
            *messages,
            *covered,
        ]
    )


def _sealed(records: Sequence[msgspec.Struct]) -> list[bytes]:
    seal, lines = "", []
    for record in (*records, _ProofEnd("end", len(records))):
        seal, line = seal_line(seal, record)
        lines.append(line)
    return lines


def _chained(messages: Iterable[StoredMessage]) -> list[tuple[StoredMessage, str]]:
    """Each message with the chain digest before it."""
    ends: dict[EntityId, str] = {}
    chained = []
    for stored in messages:
        chained.append((stored, ends.get(stored.entity, ZERO_CHAIN)))
        ends[stored.entity] = stored.chain
    return chained


def _by_entity(
    messages: Iterable[StoredMessage],
) -> dict[EntityId, list[tuple[StoredMessage, str]]]:
    found: dict[EntityId, list[tuple[StoredMessage, str]]] = {}
    for stored, previous in _chained(messages):
        found.setdefault(stored.entity, []).append((stored, previous))
    return found


def _message(stored: StoredMessage, previous: str) -> _Message:
    entity, body = str(stored.entity), stored.body.decode()
    return _Message("message", stored.sequence, entity, previous, stored.chain, body)


def _is_of(stored: StoredMessage, run: str) -> bool:
    return any(fact.run == run for fact in _views(stored))


def _views(stored: StoredMessage) -> list[_FactView]:
    try:
        return _decode(stored.body)
    except msgspec.MsgspecError:
        return []


def _node_of(stored: StoredMessage) -> str:
    views = _views(stored)
    return views[0].source.partition("@")[2] if views else ""


def _checkpoints(messages: Iterable[StoredMessage]) -> list[_Signed]:
    """All checkpoints of nodes that have said what their key is."""
    found: list[_Signed] = []
    started: dict[str, StoredMessage] = {}
    for stored in messages:
        try:
            facts = _NODES.decode(stored.body)
        except CodedError:
            continue
        for fact in facts:
            if isinstance(fact, Started) and fact.public_key:
                started[fact.node] = stored
            elif isinstance(fact, Checkpoint) and fact.node in started:
                found.append(_Signed(stored, fact, started[fact.node]))
    return found


def _covering(checkpoints: Iterable[_Signed], stored: StoredMessage, run: str) -> _Signed:
    node = _node_of(stored)
    for signed in checkpoints:
        fact = signed.fact
        if fact.node == node and fact.start < stored.sequence <= fact.sequence:
            return signed
    raise Refused(
        "GUARD_REJECTED",
        f"no checkpoint of {node or 'a node'} covers run {run} yet",
        hint="a node signs about once a minute, and when it stops; one that was killed never does",
    )


async def _heads(fact: Checkpoint, scan: ScanAfter) -> list[Head]:
    """The heads that a checkpoint signs."""
    heads: dict[EntityId, str] = {}
    async for page in scan(fact.start):
        for stored in page:
            if stored.sequence > fact.sequence:
                return list(heads.items())
            is_own = _node_of(stored) == fact.node and stored.chain not in fact.uncertain
            if is_own and not _is_checkpoint(stored):
                heads[stored.entity] = stored.chain
    return list(heads.items())


def _is_checkpoint(stored: StoredMessage) -> bool:
    if stored.entity.family != "node":
        return False
    facts = _NODES.decode(stored.body)
    return all(isinstance(fact, Checkpoint) for fact in facts)
