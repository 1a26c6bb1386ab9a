"""Decoding of commands: JSON or MessagePack to a struct, or an error with a code."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.schemas.agent_tools import AgentsQuery, RunChild
from rookery.schemas.agents import ParentRun
from rookery.schemas.approvals.lists import GrantedQuery, PendingQuery
from rookery.schemas.calls import RequestedCall
from rookery.schemas.codec import MSGPACK, NESTING_MAX, decode_command, encode_json, strict
from rookery.schemas.commands import (
    COMMANDS,
    AppendMessage,
    ApprovalDue,
    Cancel,
    ChangeApprover,
    ChangeLimits,
    ConversationQuery,
    CreateSession,
    DecideApproval,
    DestroySession,
    FilesQuery,
    FinishLogin,
    ForkRun,
    HandleInput,
    LeaseDue,
    LeaseRejected,
    LeasesQuery,
    LeaseWait,
    QuarantineMessage,
    ReplayQuery,
    ResolveCall,
    RestoreSession,
    RevokeGrant,
    RevokeRights,
    RunsQuery,
    SessionQuery,
    SessionsQuery,
    SetContext,
    SnapshotSession,
    StartLogin,
    ToolsQuery,
    UndoRuns,
    WaitEnded,
)
from rookery.schemas.errors import Refused
from rookery.schemas.hooks import ChangeHooks, HookMode, HooksQuery, HookTrial, ResumeRun, TriedCall
from rookery.schemas.peers.envelope import Envelope, EnvelopeKind
from rookery.schemas.peers.exchanges import ExchangesQuery, FollowExchange, PeerDue, SendEnvelope
from rookery.schemas.peers.gateways import ChangePushTarget, PushTarget, SignCard
from rookery.schemas.peers.items import PublishEvent, Responder, SetResponder
from rookery.schemas.peers.roster import NamePeer, PeerRevocation
from rookery.schemas.protection.policy import ExplainPolicy
from rookery.schemas.protection.rights import Rights, ToolRight
from rookery.schemas.replies import RunState
from rookery.schemas.resources import ReadResource, ResolveResource, ResourcesQuery
from rookery.schemas.run import Language, RunLimits, RunRequest, SessionLimits
from rookery.schemas.surfaces import (
    CatalogueQuery,
    ChangeCatalogue,
    SurfaceDue,
    SurfaceKind,
    SurfaceSource,
)

EXAMPLES = {
    "run": RunRequest(code="1+1", inputs={"a": [1, None]}, limits=RunLimits(cpu_ms=9)),
    "validate": RunRequest(code="1+", language=Language.TYPESCRIPT),
    "cancel": Cancel(run_id="r", reason="enough"),
    "resolve": ResolveCall(run_id="r", operation_id="o", completed=[None, 1.5]),
    "admission": HandleInput(input="Retire", params={"session_id_in": "s"}),
    "turns": HandleInput(input="enter_extraction", params={"max_retries": 2}),
    "surfaces": HandleInput(input="stage_add", params={"surface_id": "s", "now_ms": 1}),
    "leases": HandleInput(input="begin_refresh"),
    "peers": HandleInput(input="request_received", params={"corr_id": "c"}),
    "approvals": HandleInput(input="decide_approval", params={"decision": "Deny"}),
    "decide": DecideApproval(approval_id="s.o", decision="approved", actor="ann"),
    "grants": RevokeGrant(grant_id="g"),
    "approval_due": ApprovalDue(approval_id="s.o", escalate=True),
    "wait_ended": WaitEnded(operation_id="o", code="WAITING_FOR_TIMER"),
    "lease_due": LeaseDue(credential=1),
    "lease_wait": LeaseWait(session="s", operation_id="o", withdrawn=True),
    "lease_rejected": LeaseRejected(credential=1),
    "login": StartLogin(redirect_uri="http://127.0.0.1:1/callback"),
    "finish_login": FinishLogin(flow_id="f", query="code=c"),
    "leased": LeasesQuery(lease="default:bank"),
    "catalogue": ChangeCatalogue(
        add={"crew": SurfaceSource(kind=SurfaceKind.WORKER)}, remove=("old",), actor="ann"
    ),
    "catalogued": CatalogueQuery(surface="crew"),
    "hooks": ChangeHooks(modes={"guard": HookMode.AUDIT}, remove=("old",), actor="ann"),
    "hooked": HooksQuery(hook="guard"),
    "hook_trial": HookTrial(
        hook="guard",
        calls=(
            TriedCall(
                session="s",
                run_id="r",
                call=RequestedCall(operation_id="o", number=1, name="pay", digest=""),
            ),
        ),
    ),
    "hook_resume": ResumeRun(run_id="r", hook="guard", actor="ann"),
    "policy": ExplainPolicy(tool="price", arguments={"item": "tea"}),
    "surface_due": SurfaceDue(surface="crew", timeout_at_ms=1),
    "approvers": ChangeApprover(name="ann", public_key="00"),
    "roster": NamePeer(revoke=PeerRevocation(alias="west", name="coder"), change=3),
    "envelope": Envelope(
        v=1,
        kind=EnvelopeKind.MESSAGE,
        id="00000000-0000-4000-8000-000000000001",
        from_="planner",
        from_key="0" * 64,
        to="coder",
        to_realm_key="1" * 64,
        n=1,
        at_ms=1,
        expires_at_ms=2,
        body=["any", None],
    ),
    "send": SendEnvelope(to="coder@west", intent="review", params={"file": "x.py"}),
    "event": PublishEvent(source="cron", body={"job": 7}),
    "respond": SetResponder(responder=Responder(code="item['params']")),
    "peer_due": PeerDue(request_id="00000000-0000-4000-8000-000000000001"),
    "push": ChangePushTarget(
        request_id="00000000-0000-4000-8000-00000000000f",
        target_id="1",
        target=PushTarget(url="https://a.example/hook"),
    ),
    "sign_card": SignCard(card={"name": "coder"}, keys_url="https://a.example/keys"),
    "exchange": FollowExchange(
        request_id="00000000-0000-4000-8000-00000000000f", reader="cli.1", leave=True
    ),
    "exchanges": ExchangesQuery(),
    "pending": PendingQuery(session="s", ended=True, limit=5),
    "granted": GrantedQuery(session="s"),
    "session": SessionQuery(),
    "sessions": SessionsQuery(phase="Idle", limit=3),
    "runs": RunsQuery(status=RunState.OK, since_ms=1, before="7.1"),
    "tools": ToolsQuery(name="price"),
    "agents": AgentsQuery(name="researcher"),
    "child": RunChild(
        request=RunRequest(
            agent="researcher",
            inputs={"topic": "tea"},
            parent=ParentRun(session="s", run_id="r", operation_id="o"),
        ),
        rights=(Rights(),),
        descends_from=("s",),
        withdrawn=True,
    ),
    "append": AppendMessage(text="It is raining.", role="system"),
    "context": SetContext(context_key="weather", text="rain"),
    "resources": ResourcesQuery(),
    "resource_resolve": ResolveResource(uri="file://data/a.csv", max_bytes=9),
    "resource_read": ReadResource(uri="blob:" + "0" * 64, offset=5),
    "create": CreateSession(limits=SessionLimits(wall_ms=9)),
    "limits": ChangeLimits(memory_mb=128),
    "revoke": RevokeRights(rights=Rights(without=(ToolRight(tool="pay"),)), reason="lost"),
    "snapshot": SnapshotSession(),
    "files": FilesQuery(path="data.csv"),
    "restore": RestoreSession(snapshot_id="snap_0", replace=True),
    "destroy": DestroySession(),
    "replay": ReplayQuery(run_id="r"),
    "fork": ForkRun(run_id="r", session="s", at_sequence=7),
    "conversation": ConversationQuery(),
    "undo": UndoRuns(runs=2, force=True),
    "quarantine": QuarantineMessage(sequence=7, reason="foreign", actor="ann", confirm="x/y"),
}
DEEP = b"[" * 10_000 + b"]" * 10_000


def refusal(body: bytes, kind: Any = RunRequest, **how: Any) -> str:
    with pytest.raises(Refused) as caught:
        decode_command(body, kind, **how)
    return caught.value.code


def test_every_verb_has_an_example():
    missing = sorted(set(COMMANDS) - set(EXAMPLES))
    assert not missing, f"add an example of each to EXAMPLES: {missing}"
    assert set(EXAMPLES) <= set(COMMANDS)


@pytest.mark.parametrize("verb", EXAMPLES)
def test_every_command_reads_the_same_as_json_and_as_msgpack(verb: str):
    command, kind = EXAMPLES[verb], COMMANDS[verb]
    assert decode_command(encode_json(command), kind) == command
    packed = msgspec.msgpack.encode(command)
    assert decode_command(packed, kind, content_type=MSGPACK) == command


@pytest.mark.parametrize("verb", EXAMPLES)
def test_every_command_refuses_a_field_it_does_not_know(verb: str):
    body = {**msgspec.to_builtins(EXAMPLES[verb]), "colour": "red"}
    assert refusal(encode_json(body), COMMANDS[verb]) == "UNKNOWN_FIELD"
    packed = msgspec.msgpack.encode(body)
    assert refusal(packed, COMMANDS[verb], content_type=MSGPACK) == "UNKNOWN_FIELD"


def test_a_nested_struct_refuses_a_field_it_does_not_know():
    assert refusal(b'{"limits":{"cpu_ms":5,"hats":2}}') == "UNKNOWN_FIELD"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Structs in every kind of container that a command may have."""

    rows: tuple[SessionLimits, ...] = ()
    named: dict[str, list[SessionLimits]] = {}
    few: Annotated[list[SessionLimits], msgspec.Meta(max_length=2)] | None = None
    other: SessionLimits | msgspec.UnsetType = msgspec.UNSET
    required: SessionLimits


@pytest.mark.parametrize(
    "place",
    ['"rows":[%s]', '"named":{"a":[%s]}', '"few":[%s]', '"other":%s', '"rows":[{},%s]'],
)
def test_a_struct_in_a_container_refuses_a_field_it_does_not_know(place: str):
    def body(inner: str) -> bytes:
        return ('{"required":{},' + place % inner + "}").encode()

    assert refusal(body('{"hats":2}'), Order) == "UNKNOWN_FIELD"
    assert decode_command(body('{"cpu_ms":2}'), Order).required == SessionLimits()
    assert refusal(b"{}", Order) == "INVALID_ARGUMENT"


def test_a_decoded_command_is_the_struct_itself_so_that_facts_fold_back_equal():
    request = decode_command(b'{"limits":{"cpu_ms":5}}', RunRequest)
    assert type(request) is RunRequest
    assert type(request.limits) is RunLimits
    assert strict(Cancel) is Cancel


def test_missing_fields_take_the_defaults_and_an_empty_body_is_an_empty_object():
    assert decode_command(b"{}", RunRequest) == RunRequest()
    assert decode_command(b"", SessionQuery) == SessionQuery()


@pytest.mark.parametrize(
    "body", [b"[]", b"1", b'{"code":1}', b'{"timeout_ms":1.5}', b'{"language":"cobol"}']
)
def test_the_wrong_type_is_an_invalid_argument(body: bytes):
    assert refusal(body) == "INVALID_ARGUMENT"


def test_a_missing_field_without_a_default_is_an_invalid_argument():
    assert refusal(b"{}", Cancel) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("word", ["typescript", "ts", "type_script"])
def test_typescript_has_three_names_on_the_way_in_and_one_on_the_way_out(word: str):
    request = decode_command(b'{"language":"%s"}' % word.encode(), RunRequest)
    assert request.language is Language.TYPESCRIPT
    assert b'"language":"typescript"' in encode_json(request)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"{} {}",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"code":"\xe2\x82"}',
        b'{"inputs":{"a":NaN}}',
        b'{"inputs":{"a":%s}}' % DEEP,
        DEEP,
        b"[" * 100_000,
        b'{"a":' * 10_000,
    ],
    ids=lambda body: repr(body[:40]),
)
def test_what_is_not_json_is_refused_and_never_crashes(body: bytes):
    assert refusal(body) == "INVALID_JSON"


@pytest.mark.parametrize(
    "text", [r"\ud800", r"a\\\uDBFF!", r"\ud83d\ude00 \udc00", r"\ud800\ud800"]
)
def test_half_a_character_is_named(text: str):
    with pytest.raises(Refused, match=r"INVALID_ARGUMENT: .*unpaired surrogate \\u[dD][89bBcC]"):
        decode_command(b'{"inputs":{"a":"%s"}}' % text.encode(), RunRequest)
    assert refusal(b'{"code":"\\ud83d\\ude00 \\\\ud800') == "INVALID_JSON"


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x81\xa6in", b"\x81\xa4code\xa1\xff", b"\x91" * 10_000, b"\x81\x90\x01"],
)
def test_what_is_not_msgpack_is_refused_and_never_crashes(body: bytes):
    assert refusal(body, content_type=MSGPACK) in ("INVALID_JSON", "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {1: 2}, msgspec.msgpack.Ext(5, b"x")],
    ids=["nan", "infinity", "number as key", "extension type"],
)
def test_msgpack_that_has_no_json_text_is_refused(value: Any):
    body = msgspec.msgpack.encode({"inputs": {"a": value}})
    assert refusal(body, content_type=MSGPACK) == "INVALID_ARGUMENT"


def test_msgpack_is_read_as_the_json_of_the_journal():
    inputs = {"bytes": b"xx", "time": datetime(2030, 1, 2, tzinfo=UTC)}
    body = msgspec.msgpack.encode({"inputs": inputs})
    request = decode_command(body, RunRequest, content_type=MSGPACK)
    assert request.inputs == {"bytes": "eHg=", "time": "2030-01-02T00:00:00Z"}
    assert msgspec.json.decode(encode_json(request), type=RunRequest) == request


def test_nesting_is_counted_in_brackets_outside_of_texts():
    def nested(depth: int) -> bytes:
        inner = b"[" * depth + b'"]]\\"[[{{"' + b"]" * depth
        return b'{"inputs":{"a":%s}}' % inner

    assert decode_command(nested(NESTING_MAX - 2), RunRequest)
    assert refusal(nested(NESTING_MAX - 1)) == "INVALID_JSON"
    flat = b'{"inputs":{"a":[%s]}}' % b",".join([b"[]"] * 1_000)
    assert decode_command(flat, RunRequest)
    brackets = b'{"code":"%s"}' % (b"[" * 1_000)
    assert decode_command(brackets, RunRequest).code == "[" * 1_000


def test_a_body_above_the_limit_is_refused_with_limit_and_size():
    with pytest.raises(Refused, match="11 bytes, the limit is 10") as caught:
        decode_command(b'{"code":""}', RunRequest, bytes_max=10)
    assert caught.value.code == "PAYLOAD_TOO_LARGE"
    assert decode_command(b'{"code":""}', RunRequest, bytes_max=11) == RunRequest()


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "TEXT/JSON", "text/plain"])
def test_the_usual_names_of_json_are_understood(kind: str):
    assert decode_command(b"{}", RunRequest, content_type=kind) == RunRequest()


def test_another_content_type_is_refused():
    assert refusal(b"{}", content_type="application/xml") == "UNSUPPORTED_CONTENT_TYPE"


@given(st.binary(max_size=200), st.sampled_from(["", MSGPACK]))
def test_no_bytes_raise_anything_but_a_coded_refusal(body: bytes, content_type: str):
    with suppress(Refused):
        decode_command(body, RunRequest, content_type=content_type)
