"""``rookery sessions``: list and show sessions, without a node; change them on a node.

``create`` and ``limits`` set the default limits of a session's runs; the realm's maxima cap them
when a run starts.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.admission.evolve import evolve
from rookery.actors.admission.state import Admission
from rookery.actors.histories import last_restart
from rookery.actors.projections.lists import SessionQueryHandler
from rookery.actors.protection.checks import check_rights
from rookery.bus.clock import SystemClock
from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.cli.access.realm_access import OfflineRealm, local_server, open_realm
from rookery.ops.cli.arguments import (
    NO_CLASS_OPTIONS,
    NO_RIGHTS_OPTIONS,
    ClassOptions,
    RightsOptions,
    find_language,
    parse_limits,
    right_words,
)
from rookery.ops.cli.options import NO_OPTIONS, Options, parse_time_ms
from rookery.ops.cli.output import clock_time, print_json, print_line, print_table
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import (
    ChangeLimits,
    CreateSession,
    HandleInput,
    RevokeRights,
    SessionsQuery,
)
from rookery.schemas.errors import Refused
from rookery.schemas.facts.node import RIGHTS_KEY, RightsRevoked
from rookery.schemas.facts.session import SESSION_FACTS, RightsNarrowed
from rookery.schemas.facts.turn import RUN_FACTS, Started
from rookery.schemas.ids import check_session_id
from rookery.schemas.protection.rights import NO_RIGHTS, Rights, SessionRights, ToolRight
from rookery.schemas.replies import RevocationReceipt, SessionList, SessionView
from rookery.schemas.run import Language, SessionLimits, SessionMeta

__all__ = ["app"]

_SESSIONS = FactCodec[Any](SESSION_FACTS)
_TURNS = FactCodec[Any](RUN_FACTS)
_REVOCATIONS: FactCodec[RightsRevoked] = FactCodec(RightsRevoked)

app = App(name="sessions", help_format="plaintext")
for _name, (_module, _help) in {
    "snapshot": ("session_memory", "Take a snapshot of a session after its last run."),
    "restore": ("session_memory", "Create a session with the memory of a snapshot."),
    "destroy": (
        "session_memory",
        "End the generation of a session; its next run starts one without memory.",
    ),
    "append": ("session_memory", "Add a message to its conversation; no model is asked."),
    "context": ("session_memory", "List its conversation, or set a message of context."),
    "compact": ("session_memory", "Replace the older messages of its conversation."),
    "model": ("session_memory", "Set the model that its prompts are for, unless they name one."),
    "undo": ("session_memory", "Put it back to before its last runs; nothing is deleted."),
}.items():
    app.command(f"rookery.ops.cli.commands.{_module}:{_name}", name=_name, help=_help)

Limit = Annotated[
    int, Parameter(help="Largest number of sessions.", validator=Number(gte=1, lte=1_000))
]
ID = Annotated[str, Parameter(help="The session's id.")]


@app.command(name="list")
def list_(
    *,
    phase: Annotated[str | None, Parameter(help="Only sessions in this phase.")] = None,
    language: Annotated[Language | None, Parameter(help="Only sessions in this language.")] = None,
    since: Annotated[
        str | None, Parameter(help="Used at this time or later: 10m, 2h, 1d or a date.")
    ] = None,
    limit: Annotated[
        int, Parameter(help="Largest number of sessions.", validator=Number(gte=1, lte=1_000))
    ] = 1_000,
    before: Annotated[
        str | None, Parameter(help="Continue there: `next` of the previous page.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """List the sessions, the most recently used first."""
    query = SessionsQuery(
        phase=phase and SessionQueryHandler.parse_phase(phase.strip().casefold(), str.casefold),
        language=language,
        used_since_ms=None if since is None else parse_time_ms(since, SystemClock().now_ms()),
        limit=limit,
        before=before,
    )
    with local_server(options):
        found = asyncio.run(_list(query, options))
    if options.json:
        print_json(found)
        return 0
    print_table(
        ["SESSION", "PHASE", "LANGUAGE", "RUN", "QUEUED", "LAST USED"],
        [_row(session) for session in found.sessions],
        empty="no sessions",
    )
    if found.next is not None:
        print_line(f"{len(found.sessions)} of {found.total}; more: --before {found.next}")
    return 0


@app.command
def show(session: ID, *, options: Options = NO_OPTIONS) -> int:
    """Show a session and its queued inputs."""
    check_session_id(session)
    with local_server(options):
        view = asyncio.run(_show(session, options))
    if options.json:
        print_json(view)
        return 0
    for name, value in _lines(view):
        print_line(f"{name:11}{value}")
    if view.queue:
        print_table(
            ["INPUT", "RUN", "STATE"],
            [(entry.input_id, entry.run_id, entry.state) for entry in view.queue],
            empty="",
        )
    return 0


@app.command
def create(
    session: ID,
    *,
    language: Annotated[str, Parameter(help="Language of its programs.")] = "python",
    limit: Annotated[
        list[str] | None, Parameter(help="A limit of each run: NAME=NUMBER.", negative="")
    ] = None,
    may: RightsOptions = NO_RIGHTS_OPTIONS,
    claim: ClassOptions = NO_CLASS_OPTIONS,
    options: Options = NO_OPTIONS,
) -> int:
    """Create a session with its own limits, rights and classes, before its first run."""
    body = CreateSession(
        language=find_language(language),
        limits=SessionLimits(**parse_limits(limit or (), "--limit ")),
        rights=may.rights(),
        classes=claim.classes(),
    )
    return _print_limits(asyncio.run(_change("create", session, body, options)), options)


@app.command
def limits(
    session: ID,
    /,
    *changes: Annotated[str, Parameter(help="NAME=NUMBER; other limits stay the same.")],
    may: RightsOptions = NO_RIGHTS_OPTIONS,
    claim: ClassOptions = NO_CLASS_OPTIONS,
    options: Options = NO_OPTIONS,
) -> int:
    """Change the limits of a session, from its next run on, narrow its rights or raise the classes
    of its facts, at once."""
    rights, classes = may.rights(), claim.classes()
    if not changes and rights is UNSET and classes is UNSET:
        known = ", ".join(SessionLimits.__struct_fields__)
        raise Refused("INVALID_ARGUMENT", "nothing to change", hint=f"NAME=NUMBER of {known}")
    body = ChangeLimits(**parse_limits(changes), rights=rights, classes=classes)
    return _print_limits(asyncio.run(_change("limits", session, body, options)), options)


async def _list(query: SessionsQuery, options: Options) -> SessionList:
    async with open_realm(options) as realm:
        found = await realm.try_ask("sessions", query, SessionList)
        if found is None:
            found = await SessionQueryHandler.without_node(
                realm.journal, store=realm.checkpoints
            ).list(query)
        return found


async def _show(session: str, options: Options) -> SessionView:
    state: Admission | None = None
    builds = dict[int, str]()
    async with open_realm(options) as realm:
        for stored in await _read(realm, "session", session):
            for fact in _SESSIONS.decode(stored.body):
                state = evolve(state or Admission(meta=SessionMeta(id=session)), fact)
        for stored in await _read(realm, "turn", session):
            for fact in _TURNS.decode(stored.body):
                if isinstance(fact, Started) and fact.offer is not UNSET:
                    builds[fact.generation] = fact.offer.build
    if state is None:
        raise _unknown(session)
    return replace(state.view(), build=builds.get(state.generation, UNSET))


def _unknown(session: str) -> Refused:
    return Refused(
        "SESSION_NOT_FOUND", f"no session {session!r} here", hint="rookery sessions list"
    )


async def _read(realm: OfflineRealm, family: str, session: str) -> list[StoredMessage]:
    """The messages of a family since its last restart of history, if there was one."""
    pages = [page async for page in realm.journal.scan(Filter(family, session))]
    found = [stored for page in pages for stored in page]
    return found[max(0, last_restart(found)) :]


def _row(view: SessionView) -> tuple[object, ...]:
    meta = view.meta
    used = clock_time(meta.last_used_at)
    return meta.id, view.phase, meta.language, view.current_run_id, len(view.queue), used


def _lines(view: SessionView) -> list[tuple[str, object]]:
    meta = view.meta
    return [
        ("session", meta.id),
        ("phase", view.phase),
        ("generation", view.generation),
        ("language", meta.language),
        ("limits", limit_words(meta.limits)),
        *(("rights", right_words(one)) for one in (view.rights.rights if view.rights else ())),
        *([("classes", f"{kept.privacy}, {kept.retention}")] if (kept := view.classes) else ()),
        ("guest", "none yet" if view.build is UNSET else view.build[:8]),
        ("created", clock_time(meta.created_at)),
        ("last used", clock_time(meta.last_used_at)),
        ("run", view.current_run_id or "none"),
        ("queued", len(view.queue)),
    ]


def limit_words(limits: SessionLimits) -> str:
    """Limits as NAME=NUMBER."""
    return " ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(limits).items())


async def _change(verb: str, session: str, body: object, options: Options) -> SessionView:
    check_session_id(session)
    async with open_realm(options) as realm:
        return await realm.ask(verb, session, body, SessionView)


def _print_limits(view: SessionView, options: Options) -> int:
    if options.json:
        print_json(view)
    else:
        meta = view.meta
        print_line(f"session {meta.id} ({meta.language}): {limit_words(meta.limits)}")
    return 0


# --- which inputs a session takes; a node refuses to change that during a run ---------------------


@app.command
def retire(session: ID, *, options: Options = NO_OPTIONS) -> int:
    """Let a session finish its queued inputs and take no others; its memory stays."""
    return _apply("Retire", session, "takes no further inputs", options)


@app.command
def recycle(session: ID, *, options: Options = NO_OPTIONS) -> int:
    """Let a retired session take inputs again, with its memory."""
    return _apply("recycle", session, "takes inputs again", options)


@app.command
def reset(session: ID, *, options: Options = NO_OPTIONS) -> int:
    """Cancel the queued inputs of a session, and let it take new ones; its memory stays."""
    return _apply("Reset", session, "has an empty queue and takes inputs", options)


def _apply(on: str, session: str, outcome: str, options: Options) -> int:
    check_session_id(session)
    view = asyncio.run(_ask(on, session, options))
    if options.json:
        print_json(view)
    else:
        print_line(f"session {session} {outcome}")
    return 0


async def _ask(on: str, session: str, options: Options) -> SessionView:
    async with open_realm(options) as realm:
        return await realm.ask("admission", session, HandleInput(input=on), SessionView)


# --- rights ---------------------------------------------------------------------------------------


class ListedRight(msgspec.Struct, frozen=True, kw_only=True):
    """Rights that apply to a session, and what set them."""

    source: str
    """``session``, or the session in which they were revoked."""
    rights: Rights
    at_ms: int | None = None
    by: str = ""
    reason: str = ""


@app.command
def rights(session: ID, *, options: Options = NO_OPTIONS) -> int:
    """Show what the runs of a session may call, and what was revoked."""
    check_session_id(session)
    with local_server(options):
        listed, origins = asyncio.run(_list_rights(session, options))
    if options.json:
        print_json({"session_id": session, "descends_from": origins, "rights": listed})
        return 0
    print_table(
        ["RIGHTS", "SET BY", "SINCE", "REASON"],
        [
            (right_words(one.rights), _source_words(one), _time(one.at_ms), one.reason)
            for one in listed
        ],
        empty=f"session {session} may call everything",
    )
    if origins:
        print_line(f"memory from: {', '.join(origins)}")
    return 0


@app.command
def revoke(
    session: ID,
    *,
    tool: Annotated[
        list[str] | None, Parameter(help="A tool it may not call any more.", negative="")
    ] = None,
    surface: Annotated[
        list[str] | None,
        Parameter(help="A surface whose tools it may not call any more.", negative=""),
    ] = None,
    all_: Annotated[
        bool, Parameter(name="--all", help="It may not call anything any more.", negative="")
    ] = False,
    reason: Annotated[str, Parameter(help="Why; it is recorded.")] = "",
    options: Options = NO_OPTIONS,
) -> int:
    """Revoke rights of a session and of all sessions forked or restored from it, also later."""
    check_session_id(session)
    if all_ == bool(tool or surface):
        raise Refused(
            "INVALID_ARGUMENT", "revoke what?", hint="--tool NAME, --surface NAME or --all"
        )
    withdrawn = (
        *(ToolRight(tool=name) for name in tool or ()),
        *(ToolRight(surface=name) for name in surface or ()),
    )
    left = check_rights(Rights(tools=()) if all_ else Rights(without=withdrawn))
    receipt = asyncio.run(_revoke(session, RevokeRights(rights=left, reason=reason), options))
    if options.json:
        print_json(receipt)
    else:
        print_line(f"session {session} and its descendants: {right_words(receipt.rights)}")
    return 0


async def _list_rights(session: str, options: Options) -> tuple[list[ListedRight], tuple[str, ...]]:
    async with open_realm(options) as realm:
        own = await _session_rights(realm, session)
        if own is None:
            raise _unknown(session)
        listed = [ListedRight(source="session", rights=one) for one in own.rights]
        async for page in realm.journal.scan(Filter("node", RIGHTS_KEY)):
            listed += [
                _listed_revocation(fact)
                for stored in page
                for fact in _REVOCATIONS.decode(stored.body)
                if fact.session_id in (session, *own.descends_from)
            ]
    return listed, own.descends_from


async def _session_rights(realm: OfflineRealm, session: str) -> SessionRights | None:
    """The rights of a session in all its generations; ``None`` if there is no session."""
    found: SessionRights | None = None
    async for page in realm.journal.scan(Filter("session", session)):
        found = found or NO_RIGHTS
        for fact in (fact for stored in page for fact in _SESSIONS.decode(stored.body)):
            if isinstance(fact, RightsNarrowed):
                found = found.narrowed(fact.rights, fact.descends_from)
    return found


def _listed_revocation(fact: RightsRevoked) -> ListedRight:
    return ListedRight(
        source=fact.session_id,
        rights=fact.rights,
        at_ms=fact.at_ms,
        by=fact.actor,
        reason=fact.reason,
    )


async def _revoke(session: str, body: RevokeRights, options: Options) -> RevocationReceipt:
    async with open_realm(options) as realm:
        return await realm.ask("revoke", session, body, RevocationReceipt)


def _source_words(one: ListedRight) -> str:
    if one.at_ms is None:
        return "the session"
    return f"revoked in {one.source}" + (f" by {one.by}" if one.by else "")


def _time(at_ms: int | None) -> str:
    return "" if at_ms is None else clock_time(at_ms)
