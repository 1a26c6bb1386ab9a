"""From an envelope to its admission: what it is classed as, and what is read of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rookery.actors.kernel.machines.machine import ATTACHED, IDLE, SessionHost, TransitionRejected
from rookery.actors.peers.ingress_machine import INGRESS
from rookery.schemas.facts.peer import PlainEventClassified
from rookery.schemas.machines.peer import (
    PeerIngressAck,
    PeerIngressAdmission,
    PeerIngressAuthDecision,
    PeerIngressEnvelopeFacts,
    PeerIngressKind,
    PeerIngressLifecycle,
    PeerIngressMessage,
    PeerIngressPlainEventFacts,
    PeerIngressRequest,
    PeerIngressResponse,
    PeerInputClass,
    PeerLifecycleKind,
    ResponseStatus,
    TerminalityClass,
)
from rookery.schemas.machines.peer_admission import (
    admit_envelope,
    admit_plain_event,
    classification_params,
)

PEER_ID = "018f6f79-7a82-7c4e-a552-a3b86f9630f1"
LISTENING = SessionHost(phase=ATTACHED, session_id="session", silent_intents=frozenset(["quiet"]))
ADDED, RETIRED, UNWIRED = PeerLifecycleKind


def admit(kind: Any, host: SessionHost = LISTENING, sender: str = "sender") -> PeerIngressAdmission:
    envelope = PeerIngressEnvelopeFacts(
        item_id="item", from_peer=sender, from_peer_id=PEER_ID, kind=kind
    )
    wire = msgspec.json.encode(envelope)
    assert msgspec.json.decode(wire, type=PeerIngressEnvelopeFacts) == envelope
    fact = INGRESS.decide(
        host,
        "classify_external_envelope",
        INGRESS.candidate("classify_external_envelope", classification_params(envelope)),
    )
    assert INGRESS.evolve(host, fact) is host
    _, classified = INGRESS.effects(host, fact)
    return admit_envelope(envelope, classified)


def request(intent: str, params: Any = None) -> PeerIngressRequest:
    return PeerIngressRequest(intent=intent, params=params)


def response(status: ResponseStatus, result: Any = None) -> PeerIngressResponse:
    return PeerIngressResponse(in_reply_to="request", status=status, result=result)


# --- classes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PeerLifecycleKind)
def test_a_notice_that_comes_as_a_request_has_an_id_to_refer_to(kind: PeerLifecycleKind) -> None:
    asked = admit(request(kind.value))
    told = admit(PeerIngressLifecycle(kind=kind))
    assert asked.classification == told.classification
    assert told.classification.kind is PeerIngressKind.REQUEST
    assert told.classification.lifecycle_kind is kind
    assert (asked.request_id, told.request_id) == ("item", None)


def test_a_notice_is_a_notice_even_where_its_intent_is_silent() -> None:
    host = msgspec.structs.replace(LISTENING, silent_intents=frozenset(PeerLifecycleKind))
    admitted = admit(request(ADDED.value), host)
    assert admitted.classification.input_class is PeerInputClass.PEER_LIFECYCLE_ADDED


@pytest.mark.parametrize(
    ("params", "subject"),
    [
        ({"peer": "named"}, "named"),
        ({"peer": ""}, "sender"),
        ({"peer": 7}, "sender"),
        (["peer"], "sender"),
        (None, "sender"),
    ],
)
def test_a_notice_is_about_the_peer_it_names_or_else_its_sender(params: Any, subject: str) -> None:
    assert admit(request(RETIRED.value, params)).lifecycle_peer == subject
    assert admit(PeerIngressLifecycle(kind=UNWIRED, params=params)).lifecycle_peer == subject


def test_only_a_notice_names_a_peer() -> None:
    assert admit(request("ask", {"peer": "named"})).lifecycle_peer is None


def test_intents_are_matched_to_the_letter() -> None:
    for intent in ("Mob.peer_added", "mob.peer_added ", "Quiet"):
        admitted = admit(request(intent))
        assert admitted.classification.input_class is PeerInputClass.ACTIONABLE_REQUEST


def test_the_supervisors_bridge_needs_no_trust_silent_or_not() -> None:
    bridged = request("supervisor.bridge")
    silent = msgspec.structs.replace(LISTENING, silent_intents=frozenset(["supervisor.bridge"]))
    loud, hushed = admit(bridged).classification, admit(bridged, silent).classification
    assert loud.auth is hushed.auth is PeerIngressAuthDecision.SUPERVISOR_BRIDGE_EXEMPT
    assert loud.input_class is PeerInputClass.ACTIONABLE_REQUEST
    assert hushed.input_class is PeerInputClass.SILENT_REQUEST
    assert admit(request("quiet")).classification.auth is PeerIngressAuthDecision.REQUIRED


@pytest.mark.parametrize(
    ("status", "terminality"), list(zip(ResponseStatus, TerminalityClass, strict=True))
)
def test_an_answer_says_whether_it_is_the_last(
    status: ResponseStatus, terminality: TerminalityClass
) -> None:
    admitted = admit(response(status))
    assert admitted.request_id == "request"
    assert admitted.classification.response_terminality is terminality
    last = admitted.classification.input_class is PeerInputClass.RESPONSE_TERMINAL
    assert last is (status is not ResponseStatus.ACCEPTED)


@pytest.mark.parametrize(
    "host",
    [SessionHost(phase=ATTACHED), SessionHost(phase=IDLE, session_id="session")],
    ids=["none", "idle"],
)
def test_a_session_that_does_not_listen_admits_nothing(host: SessionHost) -> None:
    with pytest.raises(TransitionRejected, match="PeerCommsHandle::classify_external_envelope"):
        admit(PeerIngressMessage(body="hello"), host)


def test_notices_and_silent_requests_and_acks_ask_for_no_action() -> None:
    passive = {found for found in PeerInputClass if not found.is_actionable}
    assert passive == {
        PeerInputClass.PEER_LIFECYCLE_ADDED,
        PeerInputClass.PEER_LIFECYCLE_RETIRED,
        PeerInputClass.PEER_LIFECYCLE_UNWIRED,
        PeerInputClass.SILENT_REQUEST,
        PeerInputClass.ACK,
    }


# --- texts ----------------------------------------------------------------------------------------


def test_a_notice_is_not_read() -> None:
    assert admit(request(ADDED.value, {"peer": "named"})).rendered_text == ""
    assert admit(PeerIngressLifecycle(kind=RETIRED)).rendered_text == ""


def test_a_message_is_read_under_its_senders_name() -> None:
    text = admit(PeerIngressMessage(body="hello\nthere")).rendered_text
    assert text == "[COMMS MESSAGE from sender]\nhello\nthere"


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (None, ""),
        ({}, ""),
        ([], "\nResult: []"),
        (0, "\nResult: 0"),
        ({"b": 1, "a": "é"}, '\nResult: {\n  "a": "é",\n  "b": 1\n}'),
    ],
)
def test_an_answer_is_read_with_its_status_and_whatever_it_says(result: Any, shown: str) -> None:
    text = admit(response(ResponseStatus.COMPLETED, result)).rendered_text
    heading = "[COMMS RESPONSE from sender (to request: request)]"
    assert text == f"{heading}\nStatus: completed{shown}"


def test_an_ack_is_one_line() -> None:
    text = admit(PeerIngressAck(in_reply_to="request")).rendered_text
    assert text == "[COMMS ACK from sender (to request: request)]"


def test_a_request_is_read_with_its_parameters_and_how_to_answer_it() -> None:
    text = admit(request("review", {"pr": 42})).rendered_text
    assert text.startswith(
        f"[COMMS REQUEST from peer_id {PEER_ID} (display_name: sender) (id: item)]\n"
        'Intent: review\nParams: {\n  "pr": 42\n}\n\n'
    )
    arguments = (
        '{"display_name":"sender","in_reply_to":"item",'
        f'"peer_id":"{PEER_ID}","status":"completed"}}'
    )
    assert f"send_response and these arguments: {arguments}." in text


@pytest.mark.parametrize("params", [None, {}])
def test_a_request_without_parameters_or_name_shows_neither(params: Any) -> None:
    text = admit(request("review", params), sender=" ").rendered_text
    assert text.startswith(f"[COMMS REQUEST from peer_id {PEER_ID} (id: item)]\nIntent: review\n\n")
    assert "Params" not in text
    assert "display_name" not in text


@pytest.mark.parametrize(
    ("body", "shown"), [("", ""), (" \n", ""), (" door opened \n", " door opened")]
)
def test_an_event_is_one_line_with_what_it_says(body: str, shown: str) -> None:
    event = PeerIngressPlainEventFacts(source_name="webhook", body=body)
    asked = PlainEventClassified(source_name=event.source_name)
    fact = INGRESS.decide(LISTENING, "classify_plain_event", asked)
    _, classified = INGRESS.effects(LISTENING, fact)
    admitted = admit_plain_event(event, classified)
    assert admitted.rendered_text == f"[EVENT via webhook]{shown}"
    assert admitted.classification.input_class is PeerInputClass.PLAIN_EVENT


def test_a_classification_travels_under_the_seeds_names() -> None:
    shown = msgspec.to_builtins(admit(response(ResponseStatus.FAILED)).classification)
    assert shown == {
        "class": "ResponseTerminal",
        "kind": "Response",
        "auth": "Required",
        "lifecycle_kind": None,
        "response_terminality": "TerminalFailed",
    }
