"""What tasks of agents elsewhere are as responses, envelopes as messages, and which cards count."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.keys.json_signatures import json_key_of, key_of_file, verify_json_signature
from rookery.actors.peers.agents import AgentClient
from rookery.actors.peers.agents.agent_cards import (
    RemoteCard,
    card_fault,
    card_url_of,
    read_card,
)
from rookery.actors.peers.agents.agent_messages import (
    message_of,
    read_answer,
    read_task,
    response_of,
    response_of_message,
)
from rookery.actors.peers.terminal import PeerResponseTerminalFactErrorKind
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused
from rookery.schemas.peers.envelope import read_envelope
from rookery.schemas.peers.exchanges import (
    response_fault,
)
from rookery.schemas.peers.roster import Pairing
from tests.peers.test_agent_rules import AGENT, CARD_URL, URL, site_with_agent
from tests.peers.test_exchanges import Session

# --- messages and tasks ---------------------------------------------------------------------------


def remote(state: str, text: str = "", *parts: dict[str, Any]) -> Any:
    message = {"messageId": "m", "parts": [{"text": text}]} if text else None
    status = {"state": f"TASK_STATE_{state}"} | ({"message": message} if message else {})
    artifacts = [{"artifactId": "a", "parts": list(parts)}] if parts else []
    task = {"id": "t", "contextId": "c", "status": status, "artifacts": artifacts}
    return read_task(task, "weather@weather", "Weather")


@pytest.mark.parametrize(
    ("parts", "result"),
    [
        ([{"text": "sunny"}], "sunny"),
        ([{"data": [1, 2]}], [1, 2]),
        ([], None),
        ([{"text": "a"}, {"data": 1}], {"parts": [{"text": "a"}, {"data": 1}]}),
        ([{"url": "https://x.example"}], {"parts": [{"url": "https://x.example"}]}),
    ],
)
def test_the_result_of_a_task_is_a_text_data_or_parts(parts: list[Any], result: Any):
    assert response_of(remote("COMPLETED", "", *parts)).result == result


def test_a_task_without_artifacts_says_its_result_in_its_last_message():
    assert response_of(remote("COMPLETED", "sunny")).result == "sunny"


@pytest.mark.parametrize(
    ("state", "code", "raised"),
    [
        ("FAILED", "FAILED", "PEER_FAILED"),
        ("CANCELED", "CANCELLED", "PEER_FAILED"),
        ("REJECTED", "PEER_REJECTED", "PEER_DECLINED"),
    ],
)
def test_each_end_without_a_result_has_its_code(state: str, code: str, raised: str):
    response = response_of(remote(state, "why"))
    assert response.error is not UNSET
    assert (response.error.code, response.error.message) == (code, "why")
    fault = response_fault(response)
    assert fault is not None
    assert fault.code == raised


@pytest.mark.parametrize(
    ("state", "phase", "result"),
    [
        ("SUBMITTED", "accepted", "why"),
        ("WORKING", "in_progress", "why"),
        ("INPUT_REQUIRED", "in_progress", {"input_required": "why"}),
        ("AUTH_REQUIRED", "in_progress", {"auth_required": "why"}),
        ("A_STATE_OF_TOMORROW", "in_progress", "why"),
    ],
)
def test_a_task_that_goes_on_is_progress(state: str, phase: str, result: Any):
    response = response_of(remote(state, "why"))
    assert (response.status, response.phase, response.result) == ("accepted", phase, result)


def test_an_answer_is_a_task_or_a_message_and_nothing_else():
    message = read_answer({"message": {"messageId": "m", "parts": [{"text": "hi"}]}}, "a@a", "A")
    assert response_of_message(message).result == "hi"  # type: ignore[arg-type]
    for answer in ({}, None, [], {"task": None}, {"task": {"id": 7}}, {"message": 7}):
        with pytest.raises(Refused, match="the agent's answer"):
            read_answer(answer, "a@a", "A")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("Oslo", [{"text": "Oslo"}]),
        ({"city": "Oslo"}, [{"data": {"city": "Oslo"}}]),
        ({"parts": [{"text": "a"}, {"url": "u"}]}, [{"text": "a"}, {"url": "u"}]),
        ({"parts": [1]}, [{"data": {"parts": [1]}}]),
        (None, [{"text": "ask"}]),
    ],
)
def test_the_parameters_of_a_request_are_the_parts_of_its_message(content: Any, parts: Any):
    planner = Session(site_with_agent(), "planner")
    sent = planner.send(to="weather", intent="ask", params=content)
    message = message_of(read_envelope(sent.sent.text.encode()), None)
    assert message["parts"] == parts
    assert (message["messageId"], message["contextId"]) == (sent.corr_id, sent.corr_id)
    assert message["metadata"] == {"skillId": "ask"}


# --- cards ----------------------------------------------------------------------------------------


def card_fields(**members: Any) -> dict[str, Any]:
    interface = {"url": URL, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    return {"name": "Weather", "supportedInterfaces": [interface], "skills": []} | members


def signed_card(private: Any, algorithm: str, **members: Any) -> RemoteCard:
    """A card that PyJWT has signed."""
    fields = card_fields(**members)
    plain = {name: value for name, value in fields.items() if value not in ([], "", {})}
    header = {"alg": algorithm, "typ": "JOSE"}
    token = jwt.api_jws.encode(canonical_json(plain), private, algorithm, headers=header)
    protected, _, signature = token.split(".")
    fields["signatures"] = [{"protected": protected, "signature": signature}]
    return read_card(fields, "weather@weather")


KEYS: dict[str, tuple[Callable[[], Any], Any]] = {
    "EdDSA": (ed25519.Ed25519PrivateKey.generate, OKPAlgorithm),
    "ES256": (partial(ec.generate_private_key, ec.SECP256R1()), ECAlgorithm),
}


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_signed_card_may_change_as_its_key_signs_it_and_no_other_may(algorithm: str):
    generate, kind = KEYS[algorithm]
    private = generate()
    key = json_key_of(json.loads(kind.to_jwk(private.public_key())))
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert key_of_file(pem.decode()) == key
    agent = replace(AGENT, card_key=key)
    assert card_fault(signed_card(private, algorithm), agent) == ""
    assert card_fault(signed_card(private, algorithm, description="more"), agent) == ""
    found = signed_card(private, algorithm)
    changed = read_card({**found.fields, "description": "other"}, "weather@weather")
    assert card_fault(changed, agent) == "the key has not signed it"
    assert card_fault(signed_card(generate(), algorithm), agent) == "the key has not signed it"
    moved = read_card(
        {
            **found.fields,
            "supportedInterfaces": [
                {
                    "url": "https://evil.example",
                    "protocolBinding": "JSONRPC",
                    "protocolVersion": "1.0",
                }
            ],
        },
        "weather@weather",
    )
    assert "another address" in card_fault(moved, agent)


def test_an_unsigned_card_may_not_change():
    card = read_card(card_fields(), "weather@weather")
    agent = replace(AGENT, digest=card.digest)
    assert card_fault(card, agent) == ""
    changed = read_card(card_fields(description="more"), "weather@weather")
    assert "no key signs it" in card_fault(changed, agent)


def test_a_signature_counts_by_the_algorithm_of_its_key_alone():
    private = KEYS["EdDSA"][0]()
    key = json_key_of(json.loads(OKPAlgorithm.to_jwk(private.public_key())))
    for header in ({"alg": "none"}, {"alg": "ES256"}, {"alg": "EdDSA", "crit": ["x"]}, []):
        protected = jwt.utils.base64url_encode(json.dumps(header).encode()).decode()
        raw = private.sign(f"{protected}.{jwt.utils.base64url_encode(b'x').decode()}".encode())
        signature = jwt.utils.base64url_encode(raw).decode()
        assert not verify_json_signature(b"x", protected, signature, key)
    assert not verify_json_signature(b"x", "%", "%", key)
    assert not verify_json_signature(b"x", "e30", "AA", '{"kty":"OKP"}')


KIND = PeerResponseTerminalFactErrorKind


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ({"name": None}, KIND.MISSING_DISPLAY_IDENTITY),
        ({"name": " "}, KIND.EMPTY_DISPLAY_IDENTITY),
        ({"name": "We\nather"}, KIND.INVALID_DISPLAY_IDENTITY),
    ],
)
def test_an_agent_without_a_proper_name_is_not_accepted(members: dict[str, Any], kind: KIND):
    with pytest.raises(Refused, match=kind.value):
        read_card(card_fields(**members), "weather@weather")


def test_a_task_without_an_id_is_no_answer():
    with pytest.raises(Refused, match=KIND.EMPTY_TRANSPORT_IDENTITY.value):
        read_answer({"task": {"id": " "}}, "weather@weather", "Weather")


@pytest.mark.parametrize(
    "members",
    [
        {"supportedInterfaces": []},
        {"supportedInterfaces": 7},
        {"supportedInterfaces": [{"url": URL, "protocolBinding": "JSONRPC"}]},
        {
            "supportedInterfaces": [
                {"url": URL, "protocolBinding": "GRPC", "protocolVersion": "1.0"}
            ]
        },
    ],
)
def test_a_card_that_cannot_be_used_is_refused(members: dict[str, Any]):
    with pytest.raises(Refused, match="no interface of JSONRPC"):
        read_card(card_fields(**members), "weather@weather")


def test_an_agent_is_named_by_its_address_or_that_of_its_card():
    assert card_url_of("https://weather.example") == CARD_URL
    assert card_url_of("https://weather.example/") == CARD_URL
    assert card_url_of(CARD_URL) == CARD_URL


def test_a_pairing_without_an_agent_has_the_bytes_it_always_had():
    pairing = Pairing(alias="west", key="0" * 64)
    assert canonical_json(pairing) == canonical_json({"alias": "west", "key": "0" * 64})


def test_a_setting_that_is_no_network_is_named():
    with pytest.raises(Refused, match=r"peers\.networks"):
        AgentClient(["10.1.0.0/33"])
