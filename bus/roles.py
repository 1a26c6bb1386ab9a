"""The subjects that each role may publish and subscribe to: one table for every server.

NATS checks the subject of a message and not its reply subject: the server itself publishes acks,
direct gets and deliveries wherever a client asks for them. A client with one read permission of
JetStream could have any stream deleted, by a reply subject. So only nodes use JetStream's own
subjects; every other role reads the past through a node, and what only nodes write is published
under subjects that contain a secret of the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from rookery.bus.subjects import Subjects, encode_token
from rookery.schemas.commands import AUDIENCES, Audience
from rookery.schemas.seed.refs import PrivacyClass

__all__ = [
    "PRIVACY_MAX",
    "PRIVACY_MAX_UNPROVEN",
    "ROLES_FOR_ONE",
    "Permissions",
    "Role",
    "inbox_of",
    "permissions",
    "verbs_of",
]


class Role(StrEnum):
    """What a credential is for."""

    NODE = "node"
    """Serves the realm: writes its facts, and owns its streams, claims and secrets."""
    OPERATOR = "operator"
    """Does all that a client does, resolves calls, names approvers, retires sessions."""
    CLIENT = "client"
    """Runs programs, and reads facts and results."""
    DRIVER = "driver"
    """Takes the steps of turns that no node drives, by inputs of machines."""
    APPROVER = "approver"
    """Reads and answers requests for approval."""
    WORKER = "worker"
    """Serves the tools of one surface."""
    HOOK = "hook"
    """Serves one hook."""
    AUDITOR = "auditor"
    """Reads facts, results and lists, and writes nothing."""
    PEER = "peer"
    """Sends envelopes to sessions, and receives those for itself."""
    GATEWAY = "gateway"
    """Runs programs and sends envelopes for users of another protocol."""
    PROMPTER = "prompter"
    """Prompts published sessions by the Synadia agent protocol."""


ROLES_FOR_ONE: Final = frozenset({Role.WORKER, Role.HOOK})
"""Roles whose credentials are for one surface, or one hook."""
_AUDIENCES: Final[dict[Role, tuple[Audience, ...]]] = {
    Role.NODE: (),
    Role.OPERATOR: tuple(one for one in Audience if one not in (Audience.NODE, Audience.PEER)),
    Role.CLIENT: (Audience.PUBLIC, Audience.QUERY),
    Role.DRIVER: (Audience.QUERY, Audience.MACHINE),
    Role.APPROVER: (Audience.QUERY, Audience.APPROVER),
    Role.WORKER: (),
    Role.HOOK: (),
    Role.AUDITOR: (Audience.QUERY,),
    Role.PEER: (),
    Role.GATEWAY: (Audience.PUBLIC, Audience.QUERY, Audience.GATEWAY),
    Role.PROMPTER: (),
}
_READERS: Final = frozenset(Role) - {
    *(Role.NODE, Role.WORKER, Role.HOOK, Role.PEER, Role.PROMPTER),
}
"""Roles that read facts, live and past, output and results."""
PRIVACY_MAX: Final[dict[Role, PrivacyClass]] = {
    **dict.fromkeys(Role, PrivacyClass.PUBLIC),
    **dict.fromkeys(_READERS, PrivacyClass.CONTENT_REFS_ONLY),
    Role.OPERATOR: PrivacyClass.SENSITIVE,
    Role.NODE: PrivacyClass.SECRET,
}
"""The highest class of content that a role is answered with; of what is above, it gets names, sizes
and digests. The values of sensitive facts are sealed for every role."""
PRIVACY_MAX_UNPROVEN: Final = PrivacyClass.CONTENT_REFS_ONLY
"""Of a request whose sender proves no role: only readers may send one."""
_MICRO: Final = ("PING", "INFO", "STATS")
_DISCOVERY: Final = tuple(
    f"$SRV.{verb}{of}" for verb in _MICRO for of in ("", ".rookery", ".rookery.*")
)
_AGENTS_INBOX: Final = "_INBOX.agents.>"
"""The clients of the Synadia agent protocol choose it, whatever their connection's prefix is."""
_STREAM_API: Final = ("INFO", "CREATE", "UPDATE", "MSG.GET")
_UPGRADE_API: Final = ("INFO", "CREATE", "DELETE")
"""A stream without data, by which nodes that upgrade a realm at once agree."""
_CONSUMER_API: Final = ("CREATE", "INFO", "DELETE", "MSG.NEXT")


class Permissions(NamedTuple):
    """What the server allows, everything else being refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def verbs_of(role: Role) -> tuple[str, ...]:
    """The verbs that a credential of this role may send."""
    return tuple(verb for audience in _AUDIENCES[role] for verb in AUDIENCES[audience])


def inbox_of(user: str) -> str:
    """The prefix of the reply subjects of a user: no other user can subscribe to them."""
    return f"_INBOX.{user}"


def permissions(role: Role, subjects: Subjects, user: str, surface: str = "") -> Permissions:
    """The permissions of a user; ``surface``: of a worker, or the hook of one that serves it."""
    root, inbox = subjects.root, f"{inbox_of(user)}.>"
    if role is Role.NODE:
        return _of_node(subjects, inbox)
    publish = [*_DISCOVERY, *_sends(root, verbs_of(role))]
    subscribe = [inbox]
    if role in _READERS:
        publish += [f"{root}.read.journal", f"{root}.read.blobs.*.*"]
        subscribe += [subjects.all_facts, f"{root}.output.*"]
    if Audience.PUBLIC in _AUDIENCES[role]:
        publish.append(f"{root}.upload.>")
    match role:
        case Role.OPERATOR:
            publish += [f"{root}.read.images.*.*", f"{root}.upload_image.>"]
        case Role.APPROVER:
            publish.append(f"{root}.answer.>")
            subscribe.append(subjects.services)
        case Role.WORKER:
            place = encode_token(surface)
            publish += [f"{root}.result.{place}.>", f"{root}.read.blobs.*.*", f"{root}.upload.>"]
            subscribe += [f"{root}.tool.{place}.*", f"{root}.crew.{place}.*"]
        case Role.HOOK:
            publish.append(f"{root}.verdict.{encode_token(surface)}.>")
            subscribe.append(f"{root}.hook.{encode_token(surface)}")
        case Role.PEER | Role.GATEWAY:
            publish.append(f"{root}.cmd.envelope.*")
            subscribe.append(f"{root}.peer.{encode_token(user.rpartition('.')[2])}")
        case Role.PROMPTER:
            publish += [subjects.agents(verb) for verb in ("prompt", "status", "reply")]
            publish += [f"$SRV.{verb}.agents{of}" for verb in _MICRO for of in ("", ".*")]
            subscribe += [_AGENTS_INBOX, "agents.hb.*.*.*"]
        case _:
            """Nothing beside its verbs."""
    return Permissions(tuple(publish), tuple(subscribe))


def _sends(root: str, verbs: Iterable[str]) -> list[str]:
    """By request and durably."""
    return [f"{root}.{way}.{verb}.*" for verb in verbs for way in ("api", "cmd")]


def _of_node(subjects: Subjects, inbox: str) -> Permissions:
    """A node answers in every inbox of its realm, and uses the realm's streams; none is deleted."""
    root = subjects.root
    publish = ["rookery.*.cmd.envelope.*", subjects.agents("hb"), _AGENTS_INBOX]
    publish += [f"{root}.>", f"_INBOX.{subjects.realm}.>", subjects.services, *_DISCOVERY]
    publish += [f"$JS.API.STREAM.{verb}.{subjects.upgrade_stream}" for verb in _UPGRADE_API]
    publish.append("$JS.API.INFO")
    for stream in subjects.streams:
        publish += [f"$JS.API.STREAM.{verb}.{stream}" for verb in _STREAM_API]
        publish += [f"$JS.API.DIRECT.GET.{stream}", f"$JS.API.DIRECT.GET.{stream}.>"]
    buckets = [f"KV_{bucket}" for bucket in subjects.buckets]
    publish += [f"$JS.API.STREAM.PURGE.{stream}" for stream in (subjects.timers_stream, *buckets)]
    single = (subjects.dead_stream, subjects.timers_stream)
    publish += [f"$JS.API.STREAM.MSG.DELETE.{stream}" for stream in single]
    for stream in (subjects.journal_stream, subjects.inbox_stream):
        publish.append(f"$JS.API.CONSUMER.NAMES.{stream}")
        publish += [f"$JS.API.CONSUMER.{verb}.{stream}.>" for verb in _CONSUMER_API]
        publish.append(f"$JS.ACK.{stream}.>")
    agents = [subjects.agents(verb) for verb in ("prompt", "status", "reply")]
    return Permissions(tuple(publish), (f"{root}.>", inbox, "$SRV.>", *agents))
