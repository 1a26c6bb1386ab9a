"""What each role may publish and subscribe to, tried on a real server, subject by subject."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from rookery.bus.clock import wait_until
from rookery.bus.credentials import Credential, CredentialStore, ServerFormat
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.roles import PRIVACY_MAX, ROLES_FOR_ONE, Role
from rookery.bus.server.server import EmbeddedServer, find_server
from rookery.bus.subjects import Subjects
from rookery.schemas.commands import AUDIENCES, COMMANDS, Audience
from rookery.schemas.seed.refs import PrivacyClass

SURFACE: Final = "desk"
PUBLIC = [
    "run",
    "validate",
    "cancel",
    "append",
    "context",
    "create",
    "limits",
    "snapshot",
    "restore",
    "destroy",
    "files",
    "resource_resolve",
    "resource_read",
    "replay",
    "fork",
    "conversation",
    "undo",
    "send",
    "exchange",
    "respond",
    "event",
]
QUERIES = [
    "session",
    "sessions",
    "runs",
    "tools",
    "agents",
    "catalogued",
    "pending",
    "granted",
    "leased",
]
QUERIES += ["resources", "exchanges", "hooked", "policy"]
OPERATORS = ["resolve", "approvers", "grants", "quarantine", "revoke", "login", "finish_login"]
OPERATORS += ["roster"]
OPERATORS += ["catalogue", "hooks", "hook_trial", "hook_resume"]
GATEWAYS = ["push", "sign_card"]
MACHINES = ["admission", "turns", "surfaces", "leases", "peers", "approvals"]
VERBS: Final[dict[Role, list[str]]] = {
    Role.OPERATOR: [*PUBLIC, *QUERIES, *OPERATORS, *GATEWAYS, "decide", *MACHINES],
    Role.CLIENT: [*PUBLIC, *QUERIES],
    Role.DRIVER: [*QUERIES, *MACHINES],
    Role.APPROVER: [*QUERIES, "decide"],
    Role.WORKER: [],
    Role.HOOK: [],
    Role.AUDITOR: QUERIES,
    Role.PEER: [],
    Role.GATEWAY: [*PUBLIC, *QUERIES, *GATEWAYS],
    Role.PROMPTER: [],
}
"""The verbs of each role, in words of this test."""
READS = ["read.journal", "read.blobs.*.*"]
MORE: Final[dict[Role, list[str]]] = {
    Role.OPERATOR: [*READS, "upload.>", "read.images.*.*", "upload_image.>"],
    Role.CLIENT: [*READS, "upload.>"],
    Role.DRIVER: READS,
    Role.APPROVER: [*READS, "answer.>"],
    Role.WORKER: [READS[1], f"result.{SURFACE}.>", "upload.>"],
    Role.HOOK: [f"verdict.{SURFACE}.>"],
    Role.AUDITOR: READS,
    Role.PEER: ["cmd.envelope.*"],
    Role.GATEWAY: [*READS, "upload.>", "cmd.envelope.*"],
    Role.PROMPTER: [],
}
"""What else it may publish."""
HEARS: Final[dict[Role, list[str]]] = {
    Role.OPERATOR: ["ev.>", "output.*"],
    Role.CLIENT: ["ev.>", "ev.turn.s", "output.*"],
    Role.DRIVER: ["ev.>", "output.*"],
    Role.APPROVER: ["ev.>", "output.*"],
    Role.WORKER: [f"tool.{SURFACE}.*", f"crew.{SURFACE}.*"],
    Role.HOOK: [f"hook.{SURFACE}"],
    Role.AUDITOR: ["ev.>", "output.*"],
    Role.PEER: ["peer.peer"],
    Role.GATEWAY: ["ev.>", "output.*", "peer.gateway"],
    Role.PROMPTER: [],
}
"""What it may subscribe to, beside its inbox."""
AGENTS = [f"agents.{verb}.rookery.default.s" for verb in ("prompt", "status", "reply")]
"""Of the Synadia agent protocol, what its clients publish."""
AGENTS_HEARD = ["_INBOX.agents.>", "agents.hb.*.*.*"]
ALSO = {Role.APPROVER: {"service.default.desk"}, Role.PROMPTER: {*AGENTS_HEARD}}
ROOT = "rookery.default"
OF_NODES = [
    "w.3.1-0.turn.k",
    "w.node.0.node.k",
    "own.0.3.run.k",
    "fired-0.3.approval_due.k",
    "timer.0.x",
    "dead.0.run.k",
    "kv.0.ROOKERY_default_VAULT.key",
    "peer.0.x",
    "result.other.x.1",
    "tool.desk.x",
    "crew.desk.cancel",
    "api.approval_due.k",
    "cmd.wait_ended.k",
    "api.lease_wait.k",
    "api.child.k",
    "cmd.lease_due.k",
    "cmd.surface_due.k",
]
STREAM_VERBS = ["INFO", "CREATE", "UPDATE", "DELETE", "PURGE", "SNAPSHOT", "RESTORE"]
STREAM_VERBS += ["MSG.GET", "MSG.DELETE", "PEER.REMOVE", "LEADER.STEPDOWN"]
LAST = "refused.to.everybody"
"""Its refusal is the last: the server answers in order."""


def published_subjects() -> list[str]:
    """Subjects of the AsyncAPI document, of the nodes, of JetStream and of all buckets."""
    document = json.loads(Path("schemas/generated/asyncapi.json").read_text())
    addresses = [channel["address"] for channel in document["channels"].values()]
    known = [
        re.sub(r"{\w+}", "k", address.replace("{realm}", "default"))
        for address in addresses
        if address
    ]
    listed = {one.replace("*", "k").replace(">", "x.1") for more in MORE.values() for one in more}
    ours = [f"{ROOT}.{one}" for one in listed]
    nodes = [f"{ROOT}.{each}" for each in OF_NODES]
    others = ["rookery.other.api.run.k", "_INBOX.default.client.x.1", "_INBOX.other.x", *AGENTS]
    others += ["agents.prompt.rookery.other.s", "agents.hb.rookery.default.s", "_INBOX.agents.x"]
    return [*known, *ours, *nodes, *jetstream_subjects(), *others, "$SYS.REQ.x"]


def jetstream_subjects() -> list[str]:
    """Every call of JetStream's API for every stream, and the stock subjects of every bucket."""
    api = ["$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES", "$JS.ACK.x.y"]
    for stream in Subjects("default").streams:
        api += [f"$JS.API.STREAM.{verb}.{stream}" for verb in STREAM_VERBS]
        api += [f"$JS.API.CONSUMER.{verb}.{stream}" for verb in ("LIST", "NAMES", "CREATE")]
        api += [f"$JS.API.CONSUMER.{verb}.{stream}.c" for verb in ("MSG.NEXT", "CREATE", "DELETE")]
        api += [f"$JS.API.DIRECT.GET.{stream}", f"$JS.API.DIRECT.GET.{stream}.x"]
        api.append(f"$KV.{stream.removeprefix('KV_')}.key")
    return api


def heard_subjects() -> list[str]:
    heard = [f"{ROOT}.{each}" for each in {one for listed in HEARS.values() for one in listed}]
    ours = [f"{ROOT}.{each}" for each in ("api.>", "cmd.>", "own.>", "w.>", "tool.other.*", ">")]
    inboxes = ["_INBOX.>", "_INBOX.default.>", "_INBOX.default.node.>", "_INBOX.other.>"]
    return [
        *heard,
        "service.default.desk",
        "service.other.desk",
        *(AGENTS_HEARD + AGENTS),
        *ours,
        *inboxes,
        "$JS.>",
        "$KV.>",
        "$SRV.>",
        "$SYS.>",
        ">",
        "rookery.other.>",
    ]


class KnownServer(NamedTuple):
    """A server, and the credentials it knows."""

    address: str
    credentials: CredentialStore

    def credential(self, role: Role) -> Credential:
        name = f"{role}-desk" if role in ROLES_FOR_ONE else role.value
        found = self.credentials.get("default", name)
        assert found is not None
        return found


@pytest.fixture(scope="module", params=["embedded", *ServerFormat])
def known(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KnownServer]:
    folder = tmp_path_factory.mktemp("roles")
    if request.param == "embedded":
        with EmbeddedServer(folder / "store", sync="default", admin=True) as running:
            for role in ROLES_FOR_ONE:
                running.credential(role, surface=SURFACE)
            yield KnownServer(running.address, CredentialStore(running.store))
        return
    credentials = CredentialStore(folder)
    credentials.prepare("default", ServerFormat(request.param))
    for role in ROLES_FOR_ONE:
        credentials.create("default", f"{role}-desk", role, SURFACE)
    with server_elsewhere(folder, credentials.server_config()) as address:
        yield KnownServer(address, credentials)


@contextmanager
def server_elsewhere(folder: Path, config: str) -> Iterator[str]:
    """A plain nats-server with this configuration."""
    text = f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder}"\n'
    text += f'jetstream {{ store_dir: "{folder}" }}\n{config}'
    (folder / "outside.conf").write_text(text)
    process = subprocess.Popen(
        [find_server(), "-c", folder / "outside.conf"], stderr=subprocess.DEVNULL
    )
    try:
        wait_until(
            lambda: any(file.read_text().endswith("}") for file in folder.glob("*.ports")), 20
        )
        ports = json.loads(next(folder.glob("*.ports")).read_text())
        yield ports["nats"][0]
    finally:
        process.terminate()
        process.wait()


async def refused(known: KnownServer, role: Role) -> tuple[set[str], set[str]]:
    """The subjects that the server refuses to this role, for publishing and subscribing."""
    publish = await _denied(known, role, published_subjects(), _publish)
    return publish, await _denied(known, role, heard_subjects(), _subscribe)


async def _denied(
    known: KnownServer,
    role: Role,
    subjects: list[str],
    use: Callable[[Connection, str], Awaitable[None]],
) -> set[str]:
    denied: set[str] = set()
    answered = asyncio.Event()
    connection = Connection(known.address, known.credential(role).access())
    await connection.open()

    def on_denied(subject: str) -> None:
        denied.add(subject)
        if subject == LAST:
            answered.set()

    connection.on_denied.append(on_denied)
    try:
        for subject in [*subjects, LAST]:
            await use(connection, subject)
        await asyncio.wait_for(answered.wait(), 90)
    finally:
        await connection.close()
    return denied - {LAST}


async def _publish(connection: Connection, subject: str) -> None:
    connection.send([Outgoing(subject, b"")])


async def _subscribe(connection: Connection, subject: str) -> None:
    await connection.client.subscribe(subject)


def selects(pattern: str, subject: str) -> bool:
    """Whether a subject is one of a pattern, as NATS has it."""
    escaped = re.escape(pattern).replace(r"\*", "[^.]+").replace(">", ".+")
    return re.fullmatch(escaped, subject) is not None


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.NODE])
def test_a_role_may_do_what_the_table_says_and_nothing_else(known: KnownServer, role: Role) -> None:
    publish, subscribe = asyncio.run(refused(known, role))
    sends = [f"{ROOT}.{way}.{verb}.*" for verb in VERBS[role] for way in ("api", "cmd")]
    sends += [f"{ROOT}.{each}" for each in MORE[role]]
    expected = {s for s in published_subjects() if any(selects(one, s) for one in sends)}
    expected |= {*AGENTS} if role is Role.PROMPTER else set()
    assert set(published_subjects()) - publish == expected
    hears = {f"{ROOT}.{each}" for each in HEARS[role]} | ALSO.get(role, set())
    if f"{ROOT}.ev.>" in hears:
        hears.add(f"{ROOT}.ev.turn.s")
    assert set(heard_subjects()) - subscribe == hears


def test_a_node_reaches_its_own_realm_and_deletes_no_stream(known: KnownServer) -> None:
    publish, subscribe = asyncio.run(refused(known, Role.NODE))
    assert {f"$JS.API.STREAM.DELETE.{s}" for s in Subjects("default").streams} <= publish
    assert {"rookery.other.api.run.k", "$SYS.REQ.x", "_INBOX.other.x"} <= publish
    assert not {one for one in publish if one.startswith("rookery.default.")}
    assert {"_INBOX.default.>", "rookery.other.>", ">", "$KV.>", "$JS.>"} <= subscribe
    assert "rookery.default.>" not in subscribe


def test_a_role_has_a_highest_privacy_class() -> None:
    refs_only = ("client", "driver", "approver", "auditor", "gateway")
    assert {
        **dict.fromkeys(refs_only, PrivacyClass.CONTENT_REFS_ONLY),
        **dict.fromkeys(("worker", "hook", "peer", "prompter"), PrivacyClass.PUBLIC),
        "operator": PrivacyClass.SENSITIVE,
        "node": PrivacyClass.SECRET,
    } == PRIVACY_MAX


def test_every_verb_has_one_audience() -> None:
    grouped = [verb for verbs in AUDIENCES.values() for verb in verbs]
    assert sorted(grouped) == sorted(COMMANDS)
    assert set(AUDIENCES) == set(Audience)
