"""The check of nodes' checkpoints: what a node appended is what it signed.

A node names itself in its facts and signs, about once a minute, how many messages it has appended
and the heads of their entities. A message in its name that it did not append makes the count wrong;
one that is missing or changed makes a head wrong. ``node_log`` says which keys of nodes count.

Messages after a node's last checkpoint are not proven: a running node signs them within a minute,
one that was killed never does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from rookery.actors.keys.checkpoints import checkpoint_bytes, checkpoint_digest, heads_root
from rookery.actors.keys.ed25519 import is_valid_signature, key_id_of
from rookery.bus.ports import StoredMessage
from rookery.ops.journal.damage import DefectKind, MessageDamage
from rookery.ops.journal.node_log import (
    MESSAGES_MAX,
    EntityTable,
    NodeKeys,
    NodeLog,
    SeenKey,
    SignedSpan,
)
from rookery.ops.keys import TrustRoots
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.facts.node import Checkpoint, PartitionsTaken, Started, Stopped

__all__ = ["CheckpointCheck", "SignedCheckpoint", "Unproven"]

_NODE = "node"


class SignedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A node's last checkpoint, as an anchor stores it."""

    node: str
    sequence: int
    """Of its message."""
    digest: str


class Unproven(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that no checkpoint of their node covers."""

    node: str
    first: int
    last: int
    messages: int
    reason: str


class _NodeState(msgspec.Struct):
    """What is known of one node, or process of it."""

    log: NodeLog
    is_known: bool = False
    """Whether it has said that it started, or took partitions."""
    covered: int = 0
    """The last sequence of its last checkpoint."""
    last: Checkpoint | None = None
    last_sequence: int = 0
    uncertain: frozenset[str] = frozenset()
    stopping_at: int = 0
    """Sequence of its fact that it stops."""
    stopped_at: int = 0
    """Sequence of its last checkpoint, which covers that fact; until it comes back."""


class CheckpointCheck:
    """Checks the messages of a whole journal in order. ``defects`` grows."""

    def __init__(self, roots: TrustRoots, on_valid: Callable[[str], None] = lambda _: None) -> None:
        """``on_valid``: called with the digest of each valid checkpoint."""
        self._realm, self._on_valid = roots.realm, on_valid
        self._entities = EntityTable()
        self._nodes: dict[str, _NodeState] = {}
        self._keys = NodeKeys(roots)
        self._damaged: list[int] = []
        self._signed_from = 0
        """Sequence of the first valid checkpoint: from there on every message has a node."""
        self.proven = 0
        self.checkpoints = 0
        self.defects: list[MessageDamage] = []
        self.unproven: list[Unproven] = []

    @property
    def keys(self) -> list[SeenKey]:
        """In the order of their first sight."""
        return self._keys.seen

    @property
    def last_checkpoints(self) -> list[SignedCheckpoint]:
        return [
            SignedCheckpoint(
                node=name,
                sequence=state.last_sequence,
                digest=checkpoint_digest(self._realm, state.last),
            )
            for name, state in sorted(self._nodes.items())
            if state.last is not None
        ]

    def add_damaged(self, sequence: int) -> None:
        """A message that readers skip, so that no node answers for it."""
        self._damaged.append(sequence)

    def add(self, stored: StoredMessage, facts: Sequence[Fact]) -> None:
        """Check the next message."""
        node = facts[0].source.partition("@")[2] if facts else ""
        if stored.entity.family == _NODE and self._on_node_facts(stored, facts):
            return
        state = self._nodes.get(node) or self._state(node)
        if state.stopped_at or not node:
            self._check_origin(stored, node, state)
        state.log.add(stored.sequence, stored.entity, stored.chain)
        if len(state.log) > MESSAGES_MAX:
            self._drop(node, state, state.log.last, "no checkpoint covers so many messages")

    def _check_origin(self, stored: StoredMessage, node: str, state: _NodeState) -> None:
        if node:
            self._report(stored, f"{node} had stopped at message {state.stopped_at}")
        elif self._signed_from:
            self._report(stored, "it names no node")

    def _on_node_facts(self, stored: StoredMessage, facts: Sequence[Fact]) -> bool:
        """Learn from the facts of nodes; whether they are checkpoints only, which sign
        themselves."""
        for fact in facts:
            match fact:
                case Started():
                    self._on_started(stored, fact)
                case PartitionsTaken():
                    self._on_return(fact.node)
                case Stopped():
                    self._state(fact.node).stopping_at = stored.sequence
                case Checkpoint():
                    self._on_checkpoint(stored, fact)
                case _:
                    pass
        return all(isinstance(fact, Checkpoint) for fact in facts)

    def _state(self, node: str) -> _NodeState:
        state = self._nodes.get(node)
        if state is None:
            state = self._nodes[node] = _NodeState(NodeLog(self._entities))
        return state

    def _on_return(self, node: str) -> _NodeState:
        state = self._state(node)
        state.is_known, state.stopped_at = True, 0
        return state

    # --- keys -------------------------------------------------------------------------------------

    def _on_started(self, stored: StoredMessage, fact: Started) -> None:
        self._on_return(fact.node)
        self._keys.add(stored.sequence, fact)

    # --- checkpoints ------------------------------------------------------------------------------

    def _on_checkpoint(self, stored: StoredMessage, fact: Checkpoint) -> None:
        state = self._state(fact.node)
        key = self._keys.key_of(fact.node)
        signed = checkpoint_bytes(self._realm, fact)
        refused = self._keys.refused_key_of(fact.node)
        if refused and is_valid_signature(signed, fact.signature, refused):
            return  # It proves nothing, and the defect is that of the key.
        if not key:
            self._report(stored, f"{fact.node} has no key that counts")
            return
        is_signed = is_valid_signature(signed, fact.signature, key)
        if not is_signed or fact.key_id != key_id_of(key) or stored.entity.key != fact.node:
            self._report(stored, f"the checkpoint is not signed by {fact.node}")
            return
        if fault := self._link_fault(state, fact):
            self._report_history(stored, fault)
            return
        self._compare(stored, state, fact)
        self.checkpoints += 1
        self._signed_from = self._signed_from or stored.sequence
        state.covered, state.last, state.last_sequence = fact.sequence, fact, stored.sequence
        self._on_valid(checkpoint_digest(self._realm, fact))

    def _link_fault(self, state: _NodeState, fact: Checkpoint) -> str:
        last = state.last
        if fact.start < state.covered:
            return f"a checkpoint of {fact.node} is repeated"
        if fact.number == 1:
            return ""
        if last is None:
            return f"checkpoints of {fact.node} before its number {fact.number} are missing"
        if fact.number != last.number + 1 or fact.previous != checkpoint_digest(self._realm, last):
            return (
                f"checkpoints of {fact.node} between its numbers {last.number} and {fact.number} "
                "are missing"
            )
        return ""

    def _compare(self, stored: StoredMessage, state: _NodeState, fact: Checkpoint) -> None:
        """Compare what the node signed with what is there."""
        self._drop(fact.node, state, fact.start, "the node ended without a last checkpoint")
        uncertain = frozenset(fact.uncertain)
        span = state.log.pop_through(fact.sequence, state.uncertain | uncertain)
        state.uncertain = uncertain
        if span.messages == fact.messages and heads_root(span.heads.items()) == fact.root:
            self.proven += span.messages
            if fact.start < state.stopping_at <= fact.sequence:
                state.stopped_at = stored.sequence
            return
        if any(fact.start < sequence <= fact.sequence for sequence in self._damaged):
            self._add_unproven(fact.node, span, "a damaged message is among them")
            return
        name = f"messages {fact.start + 1} to {fact.sequence}"
        if span.messages != fact.messages:
            text = f"{name} hold {span.messages} of {fact.node}, which signed {fact.messages}"
            more = span.messages > fact.messages
            text += ": messages in its name were added" if more else ": messages were removed"
        else:
            text = f"{name} were changed after {fact.node} signed them"
        self._report_history(stored, text)

    def _drop(self, node: str, state: _NodeState, sequence: int, reason: str) -> None:
        if len(state.log) and state.log.first <= sequence:
            self._add_unproven(node, state.log.pop_through(sequence), reason)

    def _add_unproven(self, node: str, span: SignedSpan, reason: str) -> None:
        if span.messages:
            self.unproven.append(
                Unproven(
                    node=node,
                    first=span.first,
                    last=span.last,
                    messages=span.messages,
                    reason=reason,
                )
            )

    # --- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Judge keys, and what no checkpoint covers, after the last message."""
        self.defects += [
            MessageDamage.forged(
                refusal.sequence, str(EntityId(_NODE, refusal.node)), refusal.reason
            )
            for refusal in self._keys.refusals
        ]
        for node, state in self._nodes.items():
            if not len(state.log):
                continue
            last = state.log.last
            if self._signed_from and last > self._signed_from and node and not state.is_known:
                text = f"{node}, which never started, appended messages up to this one"
                self.defects.append(MessageDamage.forged(last, "", text))
            has_key = self._keys.key_of(node)
            reason = "after its last checkpoint" if has_key else "it has no key that counts"
            self._add_unproven(node, state.log.pop_through(last), reason)

    def _report(self, stored: StoredMessage, text: str) -> None:
        self.defects.append(MessageDamage.forged(stored.sequence, str(stored.entity), text))

    def _report_history(self, stored: StoredMessage, text: str) -> None:
        self.defects.append(
            MessageDamage(
                sequence=stored.sequence,
                entity=str(stored.entity),
                code="HISTORY_CHANGED",
                message=text,
                kind=DefectKind.HISTORY,
            )
        )
