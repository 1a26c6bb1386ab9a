"""All subjects, and the encoding of their tokens.

A token's reserved characters (``.``, ``*``, ``>``, ``%``, blanks and controls) become ``%XX``:
lease slugs may contain dots. Partitions are FNV-1a over the encoded key, as the server computes
them, so client, node and the inbox's subject transform always agree.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rookery.bus.ports import PARTITIONS, Filter
from rookery.schemas.envelope import HELD_BY, EntityId
from rookery.schemas.errors import Refused

__all__ = ["NODE_FAMILY", "Subjects", "decode_token", "encode_token", "partition_of"]

NODE_FAMILY = "node"
"""Every node writes its own entity of this family, independent of its partition's owner."""

_RESERVED = re.compile(r"[.*>%\s\x00-\x1f\x7f]")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")
_REALM = re.compile(r"[A-Za-z0-9_-]{1,32}\Z")


@lru_cache(maxsize=65_536)
def encode_token(text: str) -> str:
    """``text`` as one subject token."""
    if not text:
        raise Refused("INVALID_SUBJECT", "a subject token cannot be empty")
    return _RESERVED.sub(lambda m: "".join(f"%{b:02X}" for b in m[0].encode()), text)


def decode_token(token: str) -> str:
    """The text that a token encodes."""
    if "%" not in token:
        return token
    raw = bytearray()
    at = 0
    for match in _ESCAPE.finditer(token):
        raw += token[at : match.start()].encode()
        raw.append(int(match[1], 16))
        at = match.end()
    raw += token[at:].encode()
    return raw.decode(errors="replace")


@lru_cache(maxsize=65_536)
def partition_of(key: str) -> int:
    """The partition of a key: FNV-1a 32 bit of its token, as the server's ``partition()``."""
    hashed = 0x811C9DC5
    for byte in encode_token(key).encode():
        hashed = (hashed ^ byte) * 0x01000193 & 0xFFFF_FFFF
    return hashed % PARTITIONS


@lru_cache(maxsize=65_536)
def _entity(subject: str) -> EntityId:
    _, _, _, family, key = subject.split(".", 4)
    return EntityId(family, decode_token(key))


class Subjects:
    """The subjects and stream names of one realm."""

    def __init__(self, realm: str) -> None:
        if not _REALM.match(realm):
            raise Refused(
                "INVALID_ARGUMENT", f"realm {realm[:80]!r} must match ^[A-Za-z0-9_-]{{1,32}}$"
            )
        self.realm = realm
        self.root = f"rookery.{realm}"
        self.all_facts = f"{self.root}.ev.>"
        self.node_appends = f"{self.root}.w.{NODE_FAMILY}.>"
        """Subjects of the facts that nodes append about themselves."""
        self.journal_stream = f"ROOKERY_{realm}_JOURNAL"
        self.inbox_stream = f"ROOKERY_{realm}_INBOX"
        self.timers_stream = f"ROOKERY_{realm}_TIMERS"
        self.peers_stream = f"ROOKERY_{realm}_PEERS"
        self.dead_stream = f"ROOKERY_{realm}_DEAD"
        self.blobs_bucket = f"ROOKERY_{realm}_BLOBS"
        self.claims_bucket = f"ROOKERY_{realm}_CLAIMS"
        self.snapshots_bucket = f"ROOKERY_{realm}_SNAPSHOTS"
        self.projections_bucket = f"ROOKERY_{realm}_VIEWS"
        self.secrets_bucket = f"ROOKERY_{realm}_VAULT"

    # Facts.

    def fact(self, entity: EntityId) -> str:
        """Subject of an entity's stored facts, for reading and subscribing."""
        return f"{self.root}.ev.{entity.family}.{encode_token(entity.key)}"

    def append(self, term: str, entity: EntityId) -> str:
        """Subject on which the owner of the entity's partition appends facts in its term."""
        key = encode_token(entity.key)
        return f"{self.root}.w.{partition_of(entity.key)}.{term}.{entity.family}.{key}"

    def append_of_node(self, entity: EntityId) -> str:
        """Subject on which a node appends facts about itself, without a term."""
        key = encode_token(entity.key)
        return f"{self.root}.w.{NODE_FAMILY}.{key}.{entity.family}.{key}"

    def appends(self, partition: int, term: str) -> str:
        """Subjects of the appends in one term of a partition."""
        return f"{self.root}.w.{partition}.{term}.>"

    def facts(self, where: Filter) -> str:
        """The subjects a filter selects."""
        key = encode_token(where.key) if where.key else "*"
        return f"{self.root}.ev.{where.family or '*'}.{key}"

    def fact_filters(self, where: Filter) -> list[str]:
        """The subjects of all messages that may hold facts of the filter's family."""
        held_by = HELD_BY.get(where.family or "")
        others = [self.facts(Filter(held_by, where.key))] if held_by else []
        return [self.facts(where), *others]

    def entity(self, subject: str) -> EntityId:
        """The entity of a fact's subject."""
        return _entity(subject)

    # Commands.

    def command(self, verb: str, key: str) -> str:
        """Subject of a durable command, open to every client."""
        return f"{self.root}.cmd.{encode_token(verb)}.{encode_token(key)}"

    def stored_commands(self, partition: int) -> str:
        """Subjects of a partition in the inbox stream: commands (``cmd``) and timers (``fired``).

        They are one filter: with two the server finds messages ten times slower.
        """
        return f"{self.root}.*.{partition}.*.*"

    def request(self, verb: str, key: str) -> str:
        """Subject of a request, open to every client."""
        return f"{self.root}.api.{encode_token(verb)}.{encode_token(key)}"

    def requests(self, verb: str) -> str:
        """Subjects of a verb's requests, for any key."""
        return f"{self.root}.api.{encode_token(verb)}.*"

    def owned_request(self, verb: str, key: str) -> str:
        """Subject on which a node forwards a request to the owner of the key's partition."""
        return f"{self.root}.own.{partition_of(key)}.{encode_token(verb)}.{encode_token(key)}"

    def owned_requests(self, partition: int) -> str:
        return f"{self.root}.own.{partition}.*.*"

    def dead_letter(self, verb: str, key: str) -> str:
        return f"{self.root}.dead.{encode_token(verb)}.{encode_token(key)}"

    # Timers.

    def timer(self, timer_id: str) -> str:
        """Subject of a timer's schedule: one message, replaced by arming, purged by cancelling."""
        return f"{self.root}.timer.{encode_token(timer_id)}"

    def fired(self, verb: str, key: str) -> str:
        """Subject on which the server puts a timer's message when it is due."""
        return f"{self.root}.fired.{partition_of(key)}.{encode_token(verb)}.{encode_token(key)}"

    # Tool workers.

    def job(self, surface: str, tool: str) -> str:
        """Subject of a call of a worker's tool: one worker of the surface's queue group gets it."""
        return f"{self.root}.tool.{encode_token(surface)}.{encode_token(tool)}"

    def worker_broadcast(self, surface: str, what: str) -> str:
        """Subject of a message to all workers of a surface."""
        return f"{self.root}.crew.{encode_token(surface)}.{what}"
