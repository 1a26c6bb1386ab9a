"""All subjects, and the encoding of their tokens.

A token's reserved characters (``.``, ``*``, ``>``, ``%``, blanks and controls) become ``%XX``:
lease slugs may contain dots. Partitions are FNV-1a over the encoded key, as the server computes
them, so client, node and the inbox's subject transform always agree.

Every subject that only nodes write has a secret token. NATS checks no permission where it publishes
itself: a client that names such a subject as its reply subject would steer the server's answer into
a stream of the realm. The token is in the metadata of the journal's stream, which only nodes may
read. Most streams store under subjects without it, so messages and their readers stay as they were.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rookery.bus.ports import PARTITIONS, Filter
from rookery.schemas.digest import encode_base64url
from rookery.schemas.envelope import FOREIGN_FAMILY, HELD_BY, EntityId
from rookery.schemas.errors import Refused

__all__ = [
    "NODE_FAMILY",
    "Subjects",
    "agents_token",
    "decode_token",
    "encode_token",
    "hide_tokens",
    "is_fired",
    "is_plain",
    "partition_of",
]

NODE_FAMILY = "node"
"""Every node writes its own entity of this family, independent of its partition's owner."""

_RESERVED = re.compile(r"[.*>%\s\x00-\x1f\x7f]")
_PLAIN = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*\Z")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")
_AGENTS_TOKEN = re.compile(r"[a-z0-9_-]+\Z")
_REALM = re.compile(r"[A-Za-z0-9_-]{1,32}\Z")
_SECRET = re.compile(
    r"(rookery\.[A-Za-z0-9_-]+\.(?:(?:w\.\w+|own|timer|dead|peer|kv)\.|fired-))"
    r"(?:\d+-)?[0-9a-f]{32}"
)


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


def agents_token(text: str) -> str:
    """``text`` as a token of the Synadia agent protocol, whose clients expect these characters."""
    if _AGENTS_TOKEN.match(text):
        return text
    return encode_base64url(text.encode())


@lru_cache(maxsize=65_536)
def partition_of(key: str) -> int:
    """The partition of a key: FNV-1a 32 bit of its token, as the server's ``partition()``."""
    hashed = 0x811C9DC5
    for byte in encode_token(key).encode():
        hashed = (hashed ^ byte) * 0x01000193 & 0xFFFF_FFFF
    return hashed % PARTITIONS


@lru_cache(maxsize=65_536)
def _entity(subject: str) -> EntityId:
    name = subject.split(".", 3)[-1]
    family, _, key = name.partition(".")
    if not key or "." in key:
        return EntityId(FOREIGN_FAMILY, name)
    return EntityId(family, decode_token(key))


def hide_tokens(text: str) -> str:
    """``text`` for people, without the secret tokens of the subjects in it."""
    return _SECRET.sub(r"\1<secret>", text)


def is_plain(subject: str) -> bool:
    """Whether a text is a subject without wildcards."""
    return _PLAIN.match(subject) is not None


def is_fired(subject: str) -> bool:
    """Whether a message of the inbox stream is a fired timer. Clients reach ``cmd`` only; messages
    of realms before format 3 are under ``fired``, later ones under ``fired-<token>``."""
    return subject.split(".", 3)[2] != "cmd"


class Subjects:
    """The subjects and stream names of one realm. A node's have the realm's node token; a client's
    have none and cannot name what only nodes write."""

    AGENT = "rookery"
    """What sessions are in the Synadia agent protocol."""

    def __init__(self, realm: str) -> None:
        if not _REALM.match(realm):
            raise Refused(
                "INVALID_ARGUMENT", f"realm {realm[:80]!r} must match ^[A-Za-z0-9_-]{{1,32}}$"
            )
        self.realm = realm
        self.root = f"rookery.{realm}"
        self.all_facts = f"{self.root}.ev.>"
        self.journal_stream = f"ROOKERY_{realm}_JOURNAL"
        self.inbox_stream = f"ROOKERY_{realm}_INBOX"
        self.timers_stream = f"ROOKERY_{realm}_TIMERS"
        self.peers_stream = f"ROOKERY_{realm}_PEERS"
        self.dead_stream = f"ROOKERY_{realm}_DEAD"
        self.upgrade_stream = f"ROOKERY_{realm}_UPGRADE"
        """Exists during an upgrade of the realm."""
        self.blobs_bucket = f"ROOKERY_{realm}_BLOBS"
        self.images_bucket = f"ROOKERY_{realm}_IMAGES"
        self.uploads_bucket = f"ROOKERY_{realm}_UPLOADS"
        self.claims_bucket = f"ROOKERY_{realm}_CLAIMS"
        self.snapshots_bucket = f"ROOKERY_{realm}_SNAPSHOTS"
        self.projections_bucket = f"ROOKERY_{realm}_VIEWS"
        self.secrets_bucket = f"ROOKERY_{realm}_VAULT"
        self.buckets = (
            self.blobs_bucket,
            self.images_bucket,
            self.uploads_bucket,
            self.claims_bucket,
            self.snapshots_bucket,
            self.projections_bucket,
            self.secrets_bucket,
        )
        self._node_token = ""

    # The node token.

    @property
    def node_token(self) -> str:
        """The secret part of the subjects that only nodes write."""
        if not self._node_token:
            raise RuntimeError("only a node that has read the node token writes to this subject")
        return self._node_token

    def set_node_token(self, token: str) -> None:
        """Set the token once, after connecting."""
        if self._node_token not in ("", token):
            raise RuntimeError("the subjects have another node token already")
        self._node_token = token

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of all streams of the realm, those of its buckets included."""
        return (
            self.journal_stream,
            self.inbox_stream,
            self.timers_stream,
            self.peers_stream,
            self.dead_stream,
            *(f"KV_{bucket}" for bucket in self.buckets),
        )

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
        return f"{self.root}.w.{NODE_FAMILY}.{self.node_token}.{entity.family}.{key}"

    def node_appends(self) -> str:
        """Subjects of the facts that nodes append about themselves."""
        return f"{self.root}.w.{NODE_FAMILY}.{self.node_token}.>"

    def appends(self, partition: int, term: str) -> str:
        """Subjects of the appends in one term of a partition."""
        return f"{self.root}.w.{partition}.{term}.>"

    def facts(self, where: Filter) -> str:
        """The subjects a filter selects; one without limits selects foreign messages, too."""
        if where.family is None and where.key is None:
            return self.all_facts
        key = encode_token(where.key) if where.key else "*"
        return f"{self.root}.ev.{where.family or '*'}.{key}"

    def fact_filters(self, where: Filter) -> list[str]:
        """The subjects of all messages that may hold facts of the filter's family."""
        held_by = HELD_BY.get(where.family or "")
        others = [self.facts(Filter(held_by, where.key))] if held_by else []
        return [self.facts(where), *others]

    def entity(self, subject: str) -> EntityId:
        """The entity of a subject in the journal; one of ``FOREIGN_FAMILY`` if it names none."""
        return _entity(subject)

    # Output of runs.

    def output(self, session: str) -> str:
        """Subject of the output of a session's runs, which no stream stores."""
        return f"{self.root}.output.{encode_token(session)}"

    def client_peer(self, client: str) -> str:
        """Where a client that is a peer gets its envelopes."""
        return f"{self.root}.peer.{encode_token(client)}"

    def agents(self, verb: str, session: str = "*") -> str:
        """Subject of a verb of the Synadia agent protocol, by default for all sessions.

        ``session``: as ``agents_token`` has it."""
        return f"agents.{verb}.{self.AGENT}.{agents_token(self.realm)}.{session}"

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
        owner = f"{self.root}.own.{self.node_token}.{partition_of(key)}"
        return f"{owner}.{encode_token(verb)}.{encode_token(key)}"

    def owned_requests(self, partition: int) -> str:
        return f"{self.root}.own.{self.node_token}.{partition}.*.*"

    def dead_letter(self, verb: str, key: str) -> str:
        """Subject on which a node sets a command aside."""
        return f"{self.root}.dead.{self.node_token}.{encode_token(verb)}.{encode_token(key)}"

    # Timers.

    def timer(self, timer_id: str) -> str:
        """Subject on which a node arms a timer."""
        return f"{self.root}.timer.{self.node_token}.{encode_token(timer_id)}"

    def stored_timer(self, timer_id: str) -> str:
        """Subject of a timer's schedule: one message, replaced by arming, purged by cancelling."""
        return f"{self.root}.timer.{encode_token(timer_id)}"

    def fired(self, verb: str, key: str) -> str:
        """Subject on which the server puts a timer's message when it is due; it is one token, so
        that ``stored_commands`` is one filter."""
        fired = f"{self.root}.fired-{self.node_token}.{partition_of(key)}"
        return f"{fired}.{encode_token(verb)}.{encode_token(key)}"

    def all_fired(self) -> str:
        """Subjects of all timers' messages."""
        return f"{self.root}.fired-{self.node_token}.*.*.*"

    # Streams that store without the token.

    def node_written(self, kind: str) -> str:
        """Subjects on which nodes write messages that are stored under ``<kind>.>``."""
        return f"{self.root}.{kind}.{self.node_token}.>"

    def bucket_write(self, bucket: str, key: str) -> str:
        """Subject on which a node replaces the message of a bucket's key."""
        return f"{self.root}.kv.{self.node_token}.{bucket}.{key}"

    # Tool workers.

    def job(self, surface: str, tool: str) -> str:
        """Subject of a call of a worker's tool: one worker of the surface's queue group gets it."""
        return f"{self.root}.tool.{encode_token(surface)}.{encode_token(tool)}"

    def worker_broadcast(self, surface: str, what: str) -> str:
        """Subject of a message to all workers of a surface."""
        return f"{self.root}.crew.{encode_token(surface)}.{what}"

    def worker_results(self, surface: str, secret: str) -> str:
        """Subjects of the answers of a surface's workers to one connection of a node."""
        place = surface if surface == "*" else encode_token(surface)
        return f"{self.root}.result.{place}.{secret}.*"

    # Hooks that are served outside of nodes.

    def hook(self, hook: str) -> str:
        """Subject on which a hook is invoked."""
        return f"{self.root}.hook.{encode_token(hook)}"

    def hook_answers(self, hook: str, secret: str) -> str:
        """Subjects of the answers of a hook to one connection of a node."""
        place = hook if hook == "*" else encode_token(hook)
        return f"{self.root}.verdict.{place}.{secret}.*"

    def is_hook_answer(self, subject: str, hook: str) -> bool:
        """Whether a process that serves the hook may answer on this subject."""
        prefix = f"{self.root}.verdict.{encode_token(hook)}."
        return subject.startswith(prefix) and is_plain(subject.removeprefix(prefix))

    # Services outside of the realm.

    def service_answers(self, secret: str) -> str:
        """Prefix of the subjects on which an outside service answers one connection of a node."""
        return f"{self.root}.answer.{secret}"

    @property
    def services(self) -> str:
        """Subjects on which outside services of the realm are asked."""
        return f"service.{self.realm}.>"

    def is_worker_result(self, subject: str, surface: str) -> bool:
        """Whether a worker of the surface may answer on this subject."""
        prefix = f"{self.root}.result.{encode_token(surface)}."
        return subject.startswith(prefix) and is_plain(subject.removeprefix(prefix))

    # Reads and uploads, answered by any node.

    @property
    def read_journal(self) -> str:
        return f"{self.root}.read.journal"

    def read_chunk(self, kind: str, digest: str, number: int | str) -> str:
        """Subject of a query for a chunk; ``kind``: ``blobs`` or ``images``."""
        return f"{self.root}.read.{kind}.{digest}.{number}"

    def upload(self, kind: str, upload: str, part: int | str) -> str:
        """Subject of a piece of an upload or of its end; ``kind``: ``blobs`` or ``images``."""
        return f"{self.root}.{'upload' if kind == 'blobs' else 'upload_image'}.{upload}.{part}"
