"""``rookery peers``: the cards and keys by which realms trust each other, and the roster of them.

Two realms are paired by a card each way: ``card`` here, ``accept`` there, and the same back.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.peers.roster import Roster, RosterPeer, sign_change
from rookery.actors.peers.trust import PeerCard, fingerprint, peer_id_of
from rookery.actors.projections.reports import RosterReport
from rookery.bus.clock import SystemClock
from rookery.bus.ports import Filter
from rookery.ops.cli.access.realm_access import OfflineRealm, local_server, open_realm
from rookery.ops.cli.arguments import read_signer
from rookery.ops.cli.commands.approvers import approver_report
from rookery.ops.cli.commands.peers.pairings import (
    NO_AGENT,
    PLAIN_TERMS,
    NamedAgent,
    PeerTerms,
    pairing_of_agent,
    pairing_of_card,
    pairing_of_client,
    time_after,
)
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import clock_time, print_danger, print_json, print_line, print_table
from rookery.ops.cli.rendering.run_output import print_stderr
from rookery.ops.peers import delete_former_secrets, next_enrolment
from rookery.schemas.errors import Refused
from rookery.schemas.peers.roster import (
    REALM_NAME,
    ROSTER_KEY,
    Enrolment,
    KeyRotation,
    NamePeer,
    Pairing,
    PeerKind,
    PeerRevocation,
    RosterReceipt,
)

__all__ = ["app"]

app = App(name="peers", help_format="plaintext")

Key = Annotated[
    Path | None,
    Parameter(help="Private key of an approver, or the root key: it signs the change."),
]
Peer = Annotated[str, Parameter(help="Alias of the peer.")]
Overlap = Annotated[
    str, Parameter(help="How long the former key counts beside the new one: 0s, 2h or 7d.")
]
_NONE_YET = Refused("VAULT_KEY_MISSING", "the realm has no key yet", hint="rookery up")


class ListedPeer(msgspec.Struct, frozen=True, kw_only=True):
    """A peer, as lists show it."""

    alias: str
    kind: str
    key: str
    peer_id: str
    """Of the realm itself, or of the client."""
    fingerprint: str
    state: str
    """``valid``, ``expired`` or ``revoked``."""
    names: tuple[str, ...]
    intents: tuple[str, ...]
    sessions: tuple[str, ...]
    expires_at_ms: int | None
    signed_by: str
    former_until_ms: int | None
    revoked_names: tuple[str, ...]
    change: int
    url: str = ""
    """Of an agent of A2A."""
    pinned_by: str = ""
    """What its card is known by: ``key`` or ``digest``."""
    lease: str = ""


@app.command
def card(
    session: Annotated[str | None, Parameter(help="Only this session of the realm.")] = None,
    *,
    alias: Annotated[
        str | None, Parameter(name="--as", help="Proposed alias; default: the realm's name.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Print the card of this realm for `peers accept` in another one, and the words to compare.

    A card has no secret."""
    with local_server(options):
        shown = asyncio.run(_card(options, session, alias))
    words = fingerprint(shown.enrolment.key)
    if options.json:
        shown_key = shown.enrolment.key
        print_json({"card": shown.line, "fingerprint": words, "key": shown_key})
    else:
        print_line(shown.line)
        print_line(f"fingerprint: {words}")
    return 0


@app.command
def accept(
    line: Annotated[
        str | None,
        Parameter(help="The card of the other realm: the line that it printed, or a file of it."),
    ] = None,
    *,
    alias: Annotated[
        str | None,
        Parameter(name="--as", help="What this realm calls the peer; default: as it proposes."),
    ] = None,
    public_key: Annotated[
        Path | None,
        Parameter(help="Instead of a card: the public key of a client that signs by itself."),
    ] = None,
    agent: NamedAgent = NO_AGENT,
    terms: PeerTerms = PLAIN_TERMS,
    overlap: Overlap = "7d",
    key: Key = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Trust a realm by its card, a client by its key, or an agent of A2A by its agent card; or a
    realm's next key, by its new card.

    An agent's card is fetched once. It may change as long as the key signs it that signs it now; a
    card without a signature may not. Sessions call the agent NAME alone, as --as says.
    """
    if [line, public_key, agent.a2a].count(None) != 2:
        raise Refused("INVALID_ARGUMENT", "give a card, --public-key FILE, or --a2a URL")
    agent.check()
    enrolment: Enrolment | None = None
    if line is not None:
        pairing, enrolment = pairing_of_card(PeerCard.read(_card_line(line)), alias, terms)
    elif public_key is not None:
        pairing = pairing_of_client(public_key, alias, terms)
    else:
        assert agent.a2a is not None
        pairing = asyncio.run(pairing_of_agent(agent.a2a, agent, alias, terms, options))
    change = asyncio.run(_accept(options, key, pairing, enrolment, time_after(overlap)))
    if options.json:
        words = fingerprint(pairing.key)
        print_json({"alias": pairing.alias, "fingerprint": words, "change": change})
    else:
        _print_accepted(pairing)
    return 0


@app.command(name="list")
def list_(
    *,
    all_: Annotated[
        bool, Parameter(name="--all", help="Include revoked peers.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """List the peers that this realm trusts. Exit code 1: changes do not count."""
    with local_server(options):
        report = asyncio.run(_report(options))
    now_ms = SystemClock().now_ms()
    peers = [_listed(one, now_ms) for one in report.roster.peers.values()]
    listed = [one for one in peers if all_ or one.state != "revoked"]
    if options.json:
        print_json(listed)
    else:
        print_table(
            [
                "ALIAS",
                "KIND",
                "FINGERPRINT OR URL",
                "MAY REQUEST",
                "OF SESSIONS",
                "EXPIRES",
                "SIGNED BY",
            ],
            map(_row, listed),
            empty="no peers: rookery peers card prints what another realm accepts",
        )
    return _print_faults(report)


@app.command
def show(peer: Peer, *, options: Options = NO_OPTIONS) -> int:
    """Show a peer."""
    with local_server(options):
        report = asyncio.run(_report(options))
    found = _listed(report.roster.peer_of(peer), SystemClock().now_ms())
    if options.json:
        print_json(found)
        return 0
    for name, value in msgspec.to_builtins(found).items():
        print_line(f"{name.removesuffix('_ms'):<16} {_cell(name, value)}")
    return 0


@app.command
def revoke(
    peer: Annotated[str, Parameter(help="Alias of the peer, or SESSION@ALIAS: only that one.")],
    *,
    reason: Annotated[str, Parameter(help="Why; it is on record.")] = "",
    key: Key = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Trust a peer no more, or one session of it: its envelopes are refused from now on."""
    name, _, alias = peer.rpartition("@")
    revocation = PeerRevocation(alias=alias, name=name or UNSET, reason=reason)
    change = asyncio.run(_change(options, key, lambda _: NamePeer(revoke=revocation)))
    if options.json:
        print_json({"revoked": peer, "change": change})
    else:
        print_line(f"{peer} is revoked")
    return 0


@app.command
def rotate(
    session: Annotated[str | None, Parameter(help="The session that gets a new key.")] = None,
    *,
    realm: Annotated[
        bool,
        Parameter(
            name="--all-keys",
            help="The realm gets a new secret, and so does every session a new key.",
            negative="",
        ),
    ] = False,
    overlap: Overlap = "7d",
    key: Key = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Replace the key of a session, or all keys of the realm, whose new card others accept then."""
    if (session is None) == (not realm):
        raise Refused("INVALID_ARGUMENT", "give a session, or --all-keys")
    until_ms = time_after(overlap)
    if session is not None:
        change = asyncio.run(_rotate_session(options, key, session, until_ms))
        words = f"{session} has a new key"
    else:
        change = asyncio.run(_rotate_realm(options, key, until_ms))
        words = "all keys of the realm are new; send the new card: rookery peers card"
    if options.json:
        print_json({"rotated": session or REALM_NAME, "change": change})
    else:
        print_line(words)
    return 0


# --- changes --------------------------------------------------------------------------------------


async def _read(realm: OfflineRealm) -> RosterReport:
    """The roster, read from the journal."""
    signers = (await approver_report(realm)).signers
    pages = realm.journal.scan(Filter("peer", ROSTER_KEY))
    messages = [stored async for page in pages for stored in page]
    return RosterReport.read(messages, realm.subjects.realm, signers)


async def _report(options: Options) -> RosterReport:
    async with open_realm(options) as realm:
        return await _read(realm)


async def _card(options: Options, session: str | None, alias: str | None) -> PeerCard:
    async with open_realm(options) as realm:
        roster = (await _read(realm)).roster
        if not roster.enrolments:
            raise _NONE_YET
        fields = {"alias": alias or realm.subjects.realm, "name": session}
        enrolment = msgspec.to_builtins(roster.enrolments[0][0])
        try:
            return msgspec.convert({"enrolment": enrolment, **fields}, PeerCard)
        except msgspec.ValidationError as error:
            raise Refused("INVALID_ARGUMENT", str(error)) from None


async def _change(options: Options, key: Path | None, change: Any) -> int:
    """Make the change of the roster as it is, and have a node decide it; its number."""
    async with open_realm(options) as realm:
        roster = (await _read(realm)).roster
        return await _send(realm, roster, key, change(roster))


async def _send(realm: OfflineRealm, roster: Roster, key: Path | None, change: NamePeer) -> int:
    if key is not None:
        change = replace(change, change=roster.count + 1)
        change = sign_change(realm.subjects.realm, change, read_signer(key))
    receipt = await realm.ask("roster", ROSTER_KEY, change, RosterReceipt)
    return receipt.change


def _card_line(given: str) -> str:
    """The card, which is the first line of what ``peers card`` printed, if a file has it."""
    try:
        lines = Path(given).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return given
    return lines[0] if lines else given


def _print_accepted(pairing: Pairing) -> None:
    alias, agent = pairing.alias, pairing.agent
    if agent is UNSET:
        print_line(f"{alias} is trusted; its fingerprint: {fingerprint(pairing.key)}")
        print_line(f"if the other side has other words: rookery peers revoke {alias}")
    else:
        by = "key" if agent.card_key else "digest"
        print_line(f"{alias} is trusted by the {by} of its card: {agent.name}, {agent.url}")
        print_line(f"rookery peers ask {alias} ask -p text=hello")


async def _accept(
    options: Options,
    key: Path | None,
    pairing: Pairing,
    enrolment: Enrolment | None,
    until_ms: int,
) -> int:
    def change(roster: Roster) -> NamePeer:
        known = None if enrolment is None else roster.find(enrolment.former_key)
        if enrolment is None or known is None or known.revoked:
            return NamePeer(pair=pairing)
        if known.pairing.alias != pairing.alias:
            text = f"this is the next key of {known.pairing.alias}"
            hint = f"accept it --as {known.pairing.alias}"
            raise Refused("PEER_ALIAS_TAKEN", text, hint=hint)
        if known.pairing.key != enrolment.former_key:
            return NamePeer(pair=pairing)
        rotation = KeyRotation(alias=pairing.alias, enrolment=enrolment)
        return NamePeer(rotate=rotation, former_until_ms=until_ms)

    return await _change(options, key, change)


async def _rotate_session(options: Options, key: Path | None, session: str, until_ms: int) -> int:
    def change(roster: Roster) -> NamePeer:
        known = roster.numbers.get(session)
        number = 2 if known is None else known.number + 1
        fields = {"session": session, "number": number}
        try:
            rotation = msgspec.convert(fields, KeyRotation)
        except msgspec.ValidationError as error:
            raise Refused("INVALID_ARGUMENT", str(error)) from None
        return NamePeer(rotate=rotation, former_until_ms=until_ms)

    return await _change(options, key, change)


async def _rotate_realm(options: Options, key: Path | None, until_ms: int) -> int:
    async with open_realm(options, current=True) as realm:
        sealed, name = realm.sealed_secrets(realm.keys), realm.subjects.realm
        await sealed.require_keys()
        roster = (await _read(realm)).roster
        enrolment = await next_enrolment(sealed, roster, name)
        change = await _send(
            realm, roster, key, NamePeer(enrol=enrolment, former_until_ms=until_ms)
        )
        await delete_former_secrets(sealed, enrolment.generation)
        return change


# --- lists ----------------------------------------------------------------------------------------


def _listed(peer: RosterPeer, now_ms: int) -> ListedPeer:
    pairing = peer.pairing
    expires_ms = None if pairing.expires_at_ms is UNSET else pairing.expires_at_ms
    state = "expired" if expires_ms is not None and now_ms >= expires_ms else "valid"
    name = REALM_NAME if pairing.kind is PeerKind.REALM else pairing.names[0]
    agent = None if pairing.agent is UNSET else pairing.agent
    return ListedPeer(
        alias=pairing.alias,
        kind=pairing.kind,
        key=pairing.key,
        peer_id=peer_id_of(pairing.key, name),
        fingerprint=fingerprint(pairing.key if agent is None else agent.digest),
        state="revoked" if peer.revoked else state,
        names=pairing.names,
        intents=pairing.intents,
        sessions=pairing.sessions,
        expires_at_ms=expires_ms,
        signed_by=peer.signed_by,
        former_until_ms=peer.former_until_ms or None,
        revoked_names=tuple(sorted(peer.revoked_names)),
        change=peer.change,
        url="" if agent is None else agent.url,
        pinned_by="" if agent is None else "key" if agent.card_key else "digest",
        lease="" if agent is None else agent.lease,
    )


def _row(peer: ListedPeer) -> tuple[str, ...]:
    signed_by = peer.signed_by or "unsigned"
    expires = "" if peer.expires_at_ms is None else clock_time(peer.expires_at_ms)
    shown = peer.url or peer.fingerprint
    words = shown if peer.state == "valid" else f"{peer.state}: {shown}"
    may = ("-", "-") if peer.url else (", ".join(peer.intents), ", ".join(peer.sessions))
    return peer.alias, peer.kind, words, *may, expires, signed_by


def _cell(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return "-" if value is None else clock_time(value)
    if isinstance(value, list | tuple):
        return ", ".join(value) or "-"
    return str(value) or "-"


def _print_faults(report: RosterReport) -> int:
    if report.damage is not None:
        print_stderr(f"{report.damage}; until that is clear no peer of another realm is trusted")
    for one in report.skipped:
        print_danger(
            f"SKIPPED: message {one.sequence} ({one.change} {one.alias}) does not count: "
            f"{one.reason}; every node skips it"
        )
    return 1 if report.skipped else 0
