"""Decoding of facts: known ones are read, unknown ones are refused."""

from __future__ import annotations

import json
import typing
from contextlib import suppress
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.approvals.broker import intent_record
from rookery.schemas.codec import FactCodec, Upcasts, encode_facts, wire_names
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Failed
from rookery.schemas.export import FAMILIES
from rookery.schemas.facts.session import SESSION_FACTS
from rookery.schemas.hooks import HookRegistration
from rookery.schemas.ids import TypedText, decode_typed_text, encode_typed_text
from rookery.schemas.peers.envelope import OutboxEnvelope
from rookery.schemas.peers.exchanges import AgentTask
from rookery.schemas.peers.gateways import PushTarget
from rookery.schemas.peers.roster import Enrolment, Pairing, PeerRevocation
from rookery.schemas.protection.rights import Rights
from rookery.schemas.seed.hook import HookRecord
from rookery.schemas.seed.hook_invocation import AnyHookResponse
from rookery.schemas.seed.lifecycle import EffectIntent, EffectResult
from rookery.schemas.seed.records import JournalRecord
from rookery.schemas.seed.refs import EntityRef, SourceRef
from rookery.schemas.surfaces import SurfaceSource
from tests.approvals.request_fixtures import REQUEST
from tests.hooks.hook_fixtures import registration, spec


class Planted(Fact, frozen=True, kw_only=True, tag="garden.planted.v3"):
    """A fact in its third version: v1 had ``name``, v2 called it ``plant``, v3 counts them."""

    plant: str
    count: int


class Watered(Fact, frozen=True, kw_only=True, tag="garden.watered.v1"):
    """A fact with one version."""


def rename(raw: dict[str, Any]) -> dict[str, Any]:
    return {"plant": raw.pop("name"), **raw}


def count(raw: dict[str, Any]) -> dict[str, Any]:
    return {**raw, "count": 1}


GARDEN = FactCodec[Planted | Watered](
    Planted | Watered, Upcasts({"garden.planted.v1": rename, "garden.planted.v2": count})
)
KEY = "0" * 64
HOOK = registration(spec())
RECORDS: dict[Any, dict[str, Any]] = {
    Enrolment: {"realm": "r", "generation": 1, "key": KEY, "signature": ""},
    Pairing: {"alias": "west", "key": KEY},
    PeerRevocation: {"alias": "west"},
    AgentTask: {"alias": "west", "task_id": "t"},
    PushTarget: {"url": "https://a.example"},
    HookRegistration: msgspec.to_builtins(HOOK, enc_hook=encode_typed_text),
    HookRecord: msgspec.to_builtins(HOOK.spec.registered(), enc_hook=encode_typed_text),
    OutboxEnvelope: {
        "id": "i",
        "alias": "west",
        "to": "coder",
        "text": "{}",
        "from_key": KEY,
        "n": 1,
        "expires_at_ms": 7,
    },
}
SESSION = FactCodec[Any](SESSION_FACTS)
ALL_FACTS = [
    (family, kind) for family in FAMILIES for kind in wire_names(FAMILIES[family]).values()
]


def message(*facts: dict[str, Any]) -> bytes:
    return json.dumps(facts).encode()


def refusal(codec: FactCodec[Any], body: bytes) -> str:
    with pytest.raises(Failed) as caught:
        codec.decode(body)
    return caught.value.code


def example(kind: type[Fact]) -> Fact:
    """A fact with every required field set by its type."""
    hints = typing.get_type_hints(kind)
    fields = [field for field in msgspec.structs.fields(kind) if field.required]
    raw = {field.encode_name: value(hints[field.name]) for field in fields}
    return msgspec.convert(
        {**raw, "type": kind.__struct_config__.tag}, kind, dec_hook=decode_typed_text
    )


def value(hint: Any) -> Any:
    """A value of the type ``hint``; of an enum, its first word."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint))
    if typing.get_origin(hint) is tuple:
        return [value(typing.get_args(hint)[0])]
    if hint in RECORDS:
        return RECORDS[hint]
    of_origin = {str: "x", int: 7, bool: True}
    if hint is JournalRecord:
        return msgspec.to_builtins(intent_record(REQUEST, 1), enc_hook=encode_typed_text)
    if isinstance(hint, type) and issubclass(hint, TypedText):
        return "x"
    if hint == AnyHookResponse:
        return {"type": "observe_only"}
    if hint in (EffectIntent, EffectResult):
        fields = [field for field in msgspec.structs.fields(hint) if field.required]
        return {field.name: value(field.type) for field in fields}
    if hint is EntityRef or hint is SourceRef:
        return msgspec.to_builtins(REQUEST.source, enc_hook=encode_typed_text) | {"kind": "hook"}
    if hint is Rights:
        return {"calls": 7}
    if hint is SurfaceSource:
        return {"kind": "worker"}
    error = {"code": "CONFLICT", "message": "m"}
    return of_origin.get(typing.get_origin(hint) or hint, error)


@pytest.mark.parametrize(("family", "kind"), ALL_FACTS, ids=str)
def test_every_fact_survives_the_journal(family: str, kind: type[Fact]):
    fact = example(kind)
    assert FactCodec[Any](FAMILIES[family]).decode(encode_facts([fact, fact])) == [fact, fact]


def test_unknown_fields_are_ignored_at_every_depth():
    (fact,) = SESSION.decode(
        message(
            {
                "type": "session.input_accepted.v1",
                "row": "r",
                "input_id": "i",
                "colour": "red",
                "request": {"code": "1", "mood": 1, "limits": {"cpu_ms": 5, "hats": 2}},
            }
        )
    )
    assert fact.request.code == "1"
    assert fact.request.limits.cpu_ms == 5


def test_missing_fields_of_the_envelope_take_their_defaults():
    (fact,) = SESSION.decode(message({"type": "session.reset.v1"}))
    assert (fact.id, fact.at_ms, fact.cause, fact.run) == ("", 0, (), msgspec.UNSET)


def test_old_versions_are_lifted_one_step_at_a_time():
    first, second, third, other = GARDEN.decode(
        message(
            {"type": "garden.planted.v1", "id": "a", "name": "fern"},
            {"type": "garden.planted.v2", "plant": "moss"},
            {"type": "garden.planted.v3", "plant": "oak", "count": 3},
            {"type": "garden.watered.v1"},
        )
    )
    assert first == Planted(id="a", plant="fern", count=1)
    assert second == Planted(plant="moss", count=1)
    assert third == Planted(plant="oak", count=3)
    assert other == Watered()


def test_an_old_fact_that_cannot_be_lifted_is_invalid():
    assert refusal(GARDEN, message({"type": "garden.planted.v1"})) == "FACT_INVALID"


def test_a_lift_starts_from_a_wire_name():
    with pytest.raises(ValueError, match="planted"):
        Upcasts({"planted": rename})


@pytest.mark.parametrize("version", [4, 10, 999_999_999])
def test_a_newer_version_is_refused_not_guessed(version: int):
    body = message({"type": f"garden.planted.v{version}", "plant": "oak", "count": 1})
    assert refusal(GARDEN, body) == "FACT_VERSION_UNSUPPORTED"


@pytest.mark.parametrize(
    "name",
    ["garden.sold.v1", "planted", "", "garden.planted.v0", "garden.planted.v" + "9" * 5_000, None],
)
def test_an_undeclared_fact_is_unknown(name: str | None):
    assert refusal(GARDEN, message({"type": name})) == "FACT_UNKNOWN"
    assert refusal(GARDEN, message({"plant": "oak"})) == "FACT_UNKNOWN"


@pytest.mark.parametrize("body", [b'{"sealed":{"key_id":"k"}}', b' { "v": 2, "sealed" : "x" }'])
def test_a_sealed_body_is_refused_as_sealed(body: bytes):
    assert refusal(SESSION, body) == "SEALED_UNSUPPORTED"


DEEP = b"[" * 10_000 + b"]" * 10_000
RESET = b'[{"type":"session.reset.v1","row":%s}]'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b"[1]",
        b"[{]",
        b"\x00",
        b"[" * 100_000,
        DEEP,
        RESET % DEEP,
        RESET % b"1",
        RESET % b'"\xe2\x82"',
        RESET % b'"\xff"',
        RESET % b'"\\ud800"',
        b'[{"type":"session.input_cancelled.v1"}]',
        b'[{"type":"session.reset.v1","row":"r","extra":%s}]' % DEEP,
        b'[{"type":"session.reset.v2","row":%s}]' % DEEP,
        b'{"sealed":%s}' % DEEP,
    ],
    ids=lambda body: repr(body[:40]),
)
def test_garbage_is_invalid_and_never_crashes(body: bytes):
    assert refusal(SESSION, body) == "FACT_INVALID"


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_coded_failure(body: bytes):
    with suppress(Failed):
        SESSION.decode(body)
