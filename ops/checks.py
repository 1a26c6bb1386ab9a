"""Checks of ``rookery doctor``: of the machine, and of the server."""

from __future__ import annotations

import asyncio
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.actors.kernel.runtime import NodeDecider
from rookery.actors.leases import list_leases
from rookery.actors.projections.reports import ApproverReport
from rookery.actors.sandbox.runtime import fiber_obstacle
from rookery.bus.clock import entropy
from rookery.bus.credentials import CredentialStore
from rookery.bus.jetstream_api import STREAM_NOT_FOUND, ApiError
from rookery.bus.journal import JetStreamJournal
from rookery.bus.journal_audit import AuditScope
from rookery.bus.nats import Connection
from rookery.bus.ports import Filter, Secrets
from rookery.bus.replicas import stream_replicas
from rookery.bus.sealed_secrets import SealedSecrets
from rookery.bus.server import Store, find_server
from rookery.bus.streams import (
    SUBJECT_SETTINGS,
    StreamSpec,
    find_node_token,
    mismatches,
    new_node_token,
)
from rookery.bus.subjects import Subjects
from rookery.ops.config import Config
from rookery.ops.journal import JournalCheck, NodeKeys, find_forged_approvals
from rookery.ops.keys import ConfiguredKeys, TrustRoots
from rookery.schemas.commands import LeasesQuery
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.facts.node import Started

__all__ = [
    "CheckVerdict",
    "Finding",
    "Streams",
    "check_approvals",
    "check_approvers",
    "check_chain",
    "check_clock",
    "check_host",
    "check_leases",
    "check_node_keys",
    "check_payload",
    "check_replicas",
    "check_secrets",
    "check_store",
    "check_stream",
    "check_version",
    "existing_streams",
    "failed",
    "read_format",
    "without_subjects",
]

# --- host checks ----------------------------------------------------------------------------------

# Checks of the machine: interpreter, packages, server binary, store directory, disk.
#
# They change nothing. Those of the server follow.


_FREE_BYTES_LOW = 1 << 30
_FREE_BYTES_TOO_LOW = 64 << 20
_NATS_PY = "2.16."
"""The connection uses private names of this series; a test pins them."""
_PACKAGES = ("rookery", "nats-py", "msgspec", "pykka", "prometheus-client")


class CheckVerdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check, and what to do about it."""

    check: str
    verdict: CheckVerdict = CheckVerdict.OK
    detail: str = ""
    hint: str = ""
    code: str = ""
    """From the table of codes, where programs distinguish findings."""


def failed(check: str, error: CodedError) -> Finding:
    """The finding for ``error``."""
    return Finding(
        check=check,
        verdict=CheckVerdict.FAIL,
        detail=error.message,
        hint=error.hint,
        code=error.code,
    )


def check_host() -> Iterator[Finding]:
    """Check the interpreter and the packages."""
    yield Finding(check="python", detail=f"{platform.python_version()} on {platform.platform()}")
    packages = {name: version(name) for name in _PACKAGES}
    fits = packages["nats-py"].startswith(_NATS_PY)
    yield Finding(
        check="packages",
        verdict=CheckVerdict.OK if fits else CheckVerdict.FAIL,
        detail=", ".join(f"{name} {number}" for name, number in packages.items()),
        hint="" if fits else f"pip install 'nats-py=={_NATS_PY}*'",
    )
    obstacle = fiber_obstacle()
    yield Finding(
        check="fibers",
        verdict=CheckVerdict.WARN if obstacle else CheckVerdict.OK,
        detail=obstacle or "a synchronous call of a program needs no thread",
        hint="programs run all the same; each that waits for a synchronous call blocks a thread"
        if obstacle
        else "",
        code="UNSUPPORTED_FEATURE" if obstacle else "",
    )


def check_store(store: Store) -> Iterator[Finding]:
    """Check what an embedded server needs: a binary, a private directory, disk space, the lock."""
    yield _check_binary()
    yield _check_directory(store.path)
    yield _check_disk(store.path)
    yield _check_lock(store)


def _check_binary() -> Finding:
    try:
        binary = find_server()
    except Refused as error:
        return failed("nats-server", error)
    command = [binary, "--version"]
    output = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    return Finding(check="nats-server", detail=f"{output.stdout.strip()} at {binary}")


def _check_directory(path: Path) -> Finding:
    if not path.exists():
        return Finding(check="store", detail=f"{path} will be created by `rookery up`")
    users = CredentialStore(path).users_file
    for place in (users, *sorted(path.glob("credentials/*")), path):
        mode = place.stat().st_mode & 0o777 if place.exists() else 0
        if mode & 0o077:
            return Finding(
                check="store",
                verdict=CheckVerdict.FAIL if place != path else CheckVerdict.WARN,
                detail=f"{place} has mode {mode:o}: other users of this machine may read it",
                hint=f"chmod {mode & 0o700:o} {place}",
            )
    return Finding(check="store", detail=str(path))


def _check_disk(path: Path) -> Finding:
    existing = next(place for place in (path, *path.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / (1 << 30):.1f} GiB free at {existing}"
    if free >= _FREE_BYTES_LOW:
        return Finding(check="disk", detail=detail)
    return Finding(
        check="disk",
        verdict=CheckVerdict.FAIL if free < _FREE_BYTES_TOO_LOW else CheckVerdict.WARN,
        detail=detail,
        hint="free some space: on a full disk, commands wait",
    )


def _check_lock(store: Store) -> Finding:
    if store.is_locked():
        server = store.running_server()
        holder = f"nats-server {server.pid} at {server.address}" if server else "a starting server"
        return Finding(check="lock", detail=f"held by {holder}")
    left = ", ".join(sorted(path.name for path in store.path.glob("*.ports")))
    return Finding(check="lock", detail=f"free; a killed server left {left}" if left else "free")


# --- server checks --------------------------------------------------------------------------------

# Checks of the server: version, message size, the realm's streams, the clock, and the chains of
# the journal's last messages.
#
# They report a missing stream and do not create it.


_VERSION_MIN = (2, 12)
_SPOT_MESSAGES = 1_000
_CHAIN_TIMEOUT_S = 10.0
_SKEW_MS_MAX = 1_000

Streams = dict[str, dict[str, Any]]
"""Stream name to the server's description; missing streams are left out."""


def check_version(connection: Connection) -> Finding:
    found = connection.client.connected_server_version
    detail = f"nats-server {found.major}.{found.minor}.{found.patch} accepts connections"
    if (found.major, found.minor) >= _VERSION_MIN:
        return Finding(check="server", detail=detail)
    return Finding(
        check="server",
        verdict=CheckVerdict.FAIL,
        detail=f"{detail}, but atomic batches and timers need 2.12",
        hint="upgrade the server",
    )


def check_payload(connection: Connection, config: Config) -> Finding:
    takes, wanted = connection.client.max_payload, config.limits.payload_bytes_max
    if takes >= wanted:
        return Finding(check="payload", detail=f"messages may have {takes} bytes")
    return Finding(
        check="payload",
        verdict=CheckVerdict.FAIL,
        detail=f"the server takes {takes} bytes, limits.payload_bytes_max is {wanted}",
        hint=f"raise the server's max_payload, or set limits.payload_bytes_max = {takes}",
    )


async def read_format(connection: Connection, subjects: Subjects) -> Finding | None:
    """Read the node token, which the subjects of the streams contain; the finding about a realm of
    another format. If it cannot be read, the subjects get a token that no stream has."""
    found = None
    try:
        await find_node_token(connection, subjects)
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        subjects.set_node_token(new_node_token())
    except Failed as error:
        found = failed("format", error)
        subjects.set_node_token(new_node_token())
    return found


def without_subjects(spec: StreamSpec) -> StreamSpec:
    """The demands that can be checked beside a missing journal, which had the node token."""
    known = {name: value for name, value in spec.demands.items() if name not in SUBJECT_SETTINGS}
    return msgspec.structs.replace(spec, demands=known)


async def existing_streams(connection: Connection, specs: Sequence[StreamSpec]) -> Streams:
    found: Streams = {}
    for spec in specs:
        try:
            found[spec.name] = await connection.api(f"STREAM.INFO.{spec.name}")
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
    return found


def check_stream(spec: StreamSpec, streams: Streams) -> Finding:
    check = f"stream {spec.name}"
    if spec.name not in streams:
        if not streams:
            return Finding(check=check, detail="will be created by `rookery up`")
        return Finding(
            check=check,
            verdict=CheckVerdict.FAIL if spec.name.endswith("_JOURNAL") else CheckVerdict.WARN,
            detail="is missing, but other streams of the realm exist",
            hint="restore it before `rookery up` creates an empty one",
            code="STREAM_MISMATCH",
        )
    wrong = mismatches(spec, streams[spec.name]["config"])
    if not wrong:
        return Finding(check=check, detail=f"{streams[spec.name]['state']['messages']} messages")
    return Finding(
        check=check,
        verdict=CheckVerdict.FAIL,
        detail="; ".join(wrong),
        hint=f"nats stream edit {spec.name}, or serve another realm",
        code="STREAM_MISMATCH",
    )


def check_replicas(connection: Connection, config: Config, streams: Streams) -> Finding:
    """The copies of the realm's streams in a cluster."""
    setting = config.server.replicas
    copies = [stream_replicas(info, setting, connection) for info in streams.values()]
    lacking = [one for one in copies if one.replicas != one.wanted]
    behind = sorted({server for one in copies for server in one.missing})
    if lacking:
        first = lacking[0]
        return Finding(
            check="replicas",
            verdict=CheckVerdict.WARN,
            detail=f"{len(lacking)} of {len(copies)} streams do not have the copies they shall "
            f"have: {first.stream} has {first.replicas} of {first.wanted}",
            hint=f"stop every node, then: rookery realm upgrade --realm {config.realm}",
        )
    if behind:
        return Finding(
            check="replicas",
            verdict=CheckVerdict.WARN,
            detail=f"copies are away or behind on: {', '.join(behind)}",
            hint="start these servers and let them catch up before another one stops",
        )
    return Finding(check="replicas", detail=f"{len(copies)} streams have all their copies")


def check_clock(journal: dict[str, Any], now_ms: int) -> Finding:
    server_ms = datetime.fromisoformat(journal["ts"]).timestamp() * 1_000
    skew_ms = round(abs(now_ms - server_ms))
    if skew_ms <= _SKEW_MS_MAX:
        return Finding(check="clock", detail=f"{skew_ms} ms from the server's")
    return Finding(
        check="clock",
        verdict=CheckVerdict.WARN,
        detail=f"{skew_ms} ms from the server's: timers fire that much early or late",
        hint="synchronise both clocks (NTP)",
    )


async def check_chain(journal: JetStreamJournal, end: int) -> Finding:
    """Check the last messages only; ``rookery journal verify`` checks all."""
    after = max(0, end - _SPOT_MESSAGES)
    check = JournalCheck(AuditScope.TAIL if after else AuditScope.WHOLE)
    try:
        async with asyncio.timeout(_CHAIN_TIMEOUT_S):  # A scan retries without end.
            async for page in journal.scan(Filter(), after):
                for stored in page:
                    check.add(stored)
        check.finish()
    except TimeoutError:
        return failed("chain", Failed("SERVER_UNREACHABLE", "the journal could not be read"))
    except CodedError as error:
        return failed("chain", error)
    if (damage := check.error()) is not None:
        return failed("chain", damage)
    audit = check.audit
    return Finding(check="chain", detail=f"{audit.verified} of {audit.messages} messages verified")


async def check_secrets(store: Secrets, realm: str, keys: ConfiguredKeys) -> Finding:
    """Check that the key at hand opens the realm's secrets, and that it is the only one."""
    try:
        if not keys.exists and not any(generation for _, generation in await store.list()):
            return Finding(check="secrets", detail=f"{keys.origin} will be made by `rookery up`")
        ring = keys.read()
        await SealedSecrets(store, realm, keys, entropy).require_keys()
    except CodedError as error:
        return failed("secrets", error)
    if len(ring.ids) > 1:
        return Finding(
            check="secrets",
            verdict=CheckVerdict.WARN,
            detail=f"{keys.origin} has {len(ring.ids)} keys: a rotation did not end",
            hint=f"rookery secrets rotate --realm {realm}",
        )
    detail = f"key {ring.newest} in {keys.origin}: without a copy of it, no backup can be read"
    return Finding(check="secrets", detail=detail)


async def check_leases(journal: JetStreamJournal, now_ms: int) -> Finding:
    """Check that no lease waits for a person."""
    try:
        async with asyncio.timeout(_CHAIN_TIMEOUT_S):
            leases = (await list_leases(journal, LeasesQuery(), now_ms)).leases
    except TimeoutError:
        return failed("leases", Failed("SERVER_UNREACHABLE", "the leases could not be read"))
    except CodedError as error:
        return failed("leases", error)
    in_need = [one.lease for one in leases if one.login_required]
    counts = {
        "in all": len(leases),
        "to be tried again": sum(one.retry_at_ms is not None for one in leases),
        "with a login in progress": sum(one.logins > 0 for one in leases),
        "with waiting calls": sum(one.waiting_calls > 0 for one in leases),
        "in need of a login": len(in_need),
    }
    return Finding(
        check="leases",
        verdict=CheckVerdict.WARN if in_need else CheckVerdict.OK,
        detail=", ".join(f"{count} {what}" for what, count in counts.items() if count) or "none",
        hint=f"rookery leases login {in_need[0]}" if in_need else "",
        code="LEASE_REAUTH_REQUIRED" if in_need else "",
    )


async def check_approvers(journal: JetStreamJournal, realm: str, root_key: str) -> Finding:
    """Check that every change of the approvers continues the line from the root key."""
    try:
        messages = await journal.read(EntityId("approval", APPROVERS_KEY))
    except CodedError as error:
        return failed("approvers", error)
    report = ApproverReport.read(messages, realm, root_key)
    valid = [key for key in report.keys if key.revoked_at_ms is None]
    unproven = sorted({key.name for key in valid if not key.signed_by})
    if report.forged:
        first = report.forged[0]
        return Finding(
            check="approvers",
            verdict=CheckVerdict.FAIL,
            detail=f"{len(report.forged)} forged: message {first.sequence} says that {first.name} "
            f"was {first.change}, but {first.reason}",
            hint="every node skips it; a client has a node's credential: rookery auth rotate node",
            code="FACT_FORGED",
        )
    if unproven:
        return Finding(
            check="approvers",
            verdict=CheckVerdict.WARN,
            detail=f"nothing signs the keys of {', '.join(unproven)}",
            hint="rookery approvers add NAME --key FILE --as KEYFILE, and set approvals.root_key",
        )
    return Finding(check="approvers", detail=f"{len(valid)} keys, each signed")


async def check_approvals(journal: JetStreamJournal, config: Config) -> Finding:
    """Check that approvers have signed all answers, grants and revocations, where they must."""
    try:
        async with asyncio.timeout(_CHAIN_TIMEOUT_S):
            forged = await find_forged_approvals(journal, config)
    except TimeoutError:
        return Finding(
            check="approvals",
            verdict=CheckVerdict.WARN,
            detail="too many to check here",
            hint="rookery journal verify",
        )
    except CodedError as error:
        return failed("approvals", error)
    if forged:
        return Finding(
            check="approvals",
            verdict=CheckVerdict.FAIL,
            detail=f"{len(forged)} forged: {forged[0]}",
            hint="rookery approvals grants list names all; a client has a node's credential: "
            "rookery auth rotate node",
            code="FACT_FORGED",
        )
    return Finding(check="approvals", detail="none is forged")


async def check_node_keys(journal: JetStreamJournal, roots: TrustRoots) -> Finding:
    """Check that every key that a node named counts."""
    keys = NodeKeys(roots)
    try:
        async with asyncio.timeout(_CHAIN_TIMEOUT_S):
            async for page in journal.scan(Filter(family=NodeDecider.family)):
                for stored in page:
                    with suppress(CodedError):  # The check of chains names it.
                        for fact in NodeDecider.codec.decode(stored.body):
                            if isinstance(fact, Started):
                                keys.add(stored.sequence, fact)
    except TimeoutError:
        return failed("node keys", Failed("SERVER_UNREACHABLE", "the journal could not be read"))
    except CodedError as error:
        return failed("node keys", error)
    if refusals := keys.refusals:
        return Finding(
            check="node keys",
            verdict=CheckVerdict.FAIL,
            detail="; ".join({refusal.reason: None for refusal in refusals}),
            hint="yours: `rookery nodes vouch` on its machine, with --as FILE if it has no "
            "operator's credential, then start it again; not yours: rookery auth rotate node",
            code="FACT_FORGED",
        )
    first_sight = [one for one in keys.seen if not one.vouched]
    text = f"{len(keys.seen)} keys, {len(first_sight)} of them taken at first sight"
    return Finding(check="node keys", detail=text)
