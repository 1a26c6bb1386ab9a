"""Peer conversations as a session reads them: the seed's tests one to one, and the rest.

The seed's file has lost the second blank of every indentation; its texts have two.
"""

from __future__ import annotations

import pickle
from typing import Any
from uuid import UUID

import pytest

from rookery.actors.peers.projections import (
    MessageProjection,
    RequestProjection,
    ResponseProgressProjection,
    ResponseTerminalProjection,
)
from rookery.actors.peers.terminal import (
    PeerResponseTerminalCorrelationId,
    PeerResponseTerminalDisplayIdentity,
    PeerResponseTerminalFact,
    PeerResponseTerminalFactError,
    PeerResponseTerminalFactErrorKind,
    PeerResponseTerminalRenderPayload,
    PeerResponseTerminalRouteIdentity,
    PeerResponseTerminalSource,
    PeerResponseTerminalTransportIdentity,
    peer_response_terminal_context_key,
)
from rookery.schemas.machines.peer import (
    PeerResponseProgressProjectionPhase,
    PeerResponseTerminalProjectionStatus,
)

UUID_TEXT = "018f6f79-7a82-7c4e-a552-a3b86f9630f1"
ErrorKind = PeerResponseTerminalFactErrorKind


def terminal(payload: Any, status: str = "completed") -> PeerResponseTerminalFact:
    return PeerResponseTerminalFact(
        PeerResponseTerminalSource(
            PeerResponseTerminalTransportIdentity.parse("transport-runtime-1"),
            PeerResponseTerminalRouteIdentity.parse("analyst-rt"),
            PeerResponseTerminalDisplayIdentity.parse("Analyst"),
        ),
        PeerResponseTerminalCorrelationId.parse(UUID_TEXT),
        PeerResponseTerminalProjectionStatus(status),
        PeerResponseTerminalRenderPayload(payload),
    )


# --- the seed's own -------------------------------------------------------------------------------


def test_a_terminal_answer_has_its_prompt_and_its_context_key() -> None:
    """Seed 001: ``peer_terminal_projection_owns_prompt_and_context_key``."""
    said = {
        "request_intent": "checksum_token",
        "request_subject": "alpha beta gamma",
        "token": "birch seventeen",
    }
    projection = ResponseTerminalProjection(fact=terminal(said))
    assert projection.context_key() == f"peer_response_terminal:analyst-rt:{UUID_TEXT}"
    assert projection.prompt_text() == (
        "[SYSTEM NOTICE][PEER_RESPONSE_TERMINAL] Correlated peer response from Analyst. "
        f"Request ID: {UUID_TEXT}. Status: completed. Result: {{\n"
        '  "request_intent": "checksum_token",\n'
        '  "request_subject": "alpha beta gamma",\n'
        '  "token": "birch seventeen"\n'
        "}."
    )


def test_progress_says_how_far_it_is_in_the_words_of_the_wire() -> None:
    """Seed 001: ``peer_progress_projection_formats_phase_from_shared_seam``."""
    projection = ResponseProgressProjection(
        peer_id="operator-rt",
        request_id="req-789",
        phase=PeerResponseProgressProjectionPhase.PARTIAL_RESULT,
        payload={"chunk": "alpha"},
    )
    assert projection.context_key() is None
    assert projection.prompt_text() == (
        "[SYSTEM NOTICE][PEER_RESPONSE_PROGRESS] Correlated peer response progress from "
        "operator-rt. Request ID: req-789. Phase: partial_result. "
        'Payload: {\n  "chunk": "alpha"\n}.'
    )


def test_the_context_key_is_the_same_in_every_projection() -> None:
    """Seed 001: ``peer_terminal_context_key_helper_stays_canonical``."""
    route = PeerResponseTerminalRouteIdentity.parse("peer-a")
    correlation = PeerResponseTerminalCorrelationId.parse(UUID_TEXT)
    key = peer_response_terminal_context_key(route, correlation)
    assert key == f"peer_response_terminal:peer-a:{UUID_TEXT}"


# --- the rest of the conversation -----------------------------------------------------------------


def test_a_message_is_only_a_prefix_of_its_blocks() -> None:
    projection = MessageProjection(peer_id="operator-rt")
    assert projection.block_prefix_text() == "[COMMS MESSAGE from operator-rt]"
    assert projection.prompt_text() == ""
    assert projection.context_key() is None


def asked(display_name: str | None = None, payload: Any = None) -> RequestProjection:
    return RequestProjection(
        peer_id=UUID_TEXT,
        display_name=display_name,
        request_id="req-1",
        intent="review",
        payload=payload,
    )


@pytest.mark.parametrize("display_name", [None, "", "  "])
def test_a_request_names_the_peer_the_intent_and_how_to_answer(display_name: str | None) -> None:
    text = asked(display_name).prompt_text()
    assert text.startswith(
        f"[SYSTEM NOTICE][PEER_REQUEST] Correlated peer request from peer_id {UUID_TEXT}. "
        "Intent: review. Request ID: req-1. Params: null. This is not a normal user request and "
        "not a prompt for direct user-facing output. "
    )
    arguments = f'{{"in_reply_to":"req-1","peer_id":"{UUID_TEXT}","status":"completed"}}'
    assert f"send_response and these arguments: {arguments}." in text
    assert text.endswith(" Do not use send_message for this reply.")
    assert asked(display_name).block_prefix_text() is None
    assert asked(display_name).context_key() is None


def test_a_peers_name_is_shown_trimmed() -> None:
    text = asked(" Analyst ", {"b": 1, "a": []}).prompt_text()
    assert f"from peer_id {UUID_TEXT} (display_name: Analyst). Intent" in text
    assert '"display_name":"Analyst","in_reply_to"' in text
    assert 'Params: {\n  "a": [],\n  "b": 1\n}. This' in text


def test_an_answer_that_says_nothing_says_null() -> None:
    assert terminal(None, "cancelled").prompt_text().endswith("Status: cancelled. Result: null.")


# --- who answered ---------------------------------------------------------------------------------

PARTS = {
    "transport": PeerResponseTerminalTransportIdentity,
    "route": PeerResponseTerminalRouteIdentity,
    "display": PeerResponseTerminalDisplayIdentity,
    "correlation": PeerResponseTerminalCorrelationId,
}


@pytest.mark.parametrize(
    ("part", "given", "kind", "text"),
    [
        ("transport", " ", "EmptyTransportIdentity", "transport identity cannot be empty"),
        ("route", "\n\t", "EmptyRouteIdentity", "route identity cannot be empty"),
        (
            "route",
            "peer\n",
            "InvalidRouteIdentity",
            "route identity cannot contain control characters",
        ),
        ("display", "\u3000", "EmptyDisplayIdentity", "display identity cannot be empty"),
        (
            "display",
            "\x1f",
            "InvalidDisplayIdentity",
            "display identity cannot contain control characters",
        ),
        ("correlation", "", "EmptyCorrelationId", "correlation id cannot be empty"),
        ("correlation", "req-1", "InvalidCorrelationId", "correlation id must be a UUID: req-1"),
    ],
)
def test_each_error_of_an_answer_has_a_kind(part: str, given: str, kind: str, text: str) -> None:
    with pytest.raises(PeerResponseTerminalFactError) as found:
        PARTS[part].parse(given)
    error = pickle.loads(pickle.dumps(found.value))
    assert (error.kind.variant, str(error), error.code) == (kind, text, "INVALID_ARGUMENT")


def test_a_source_is_checked_from_its_transport_to_its_name() -> None:
    for given, kind in [
        (("", "", ""), ErrorKind.EMPTY_TRANSPORT_IDENTITY),
        ((None, "", ""), ErrorKind.EMPTY_ROUTE_IDENTITY),
        ((None, "route", None), ErrorKind.MISSING_DISPLAY_IDENTITY),
        ((None, "route", ""), ErrorKind.EMPTY_DISPLAY_IDENTITY),
    ]:
        with pytest.raises(PeerResponseTerminalFactError) as found:
            PeerResponseTerminalSource.parse(*given)
        assert found.value.kind is kind
    assert PeerResponseTerminalSource.parse(None, "route", "name").transport_identity is None


def test_names_are_kept_as_they_were_given() -> None:
    assert str(PeerResponseTerminalDisplayIdentity.parse(" Analyst ")) == " Analyst "
    assert str(PeerResponseTerminalTransportIdentity.parse("a\x00b")) == "a\x00b"


@pytest.mark.parametrize(
    "given",
    [
        UUID_TEXT,
        UUID_TEXT.upper(),
        UUID_TEXT.replace("-", ""),
        f"{{{UUID_TEXT}}}",
        f"urn:uuid:{UUID_TEXT}",
    ],
)
def test_a_correlation_id_is_canonical_however_it_was_written(given: str) -> None:
    parsed = PeerResponseTerminalCorrelationId.parse(given)
    assert str(parsed) == UUID_TEXT
    assert parsed == PeerResponseTerminalCorrelationId(UUID(UUID_TEXT))


@pytest.mark.parametrize(
    "given",
    [
        f" {UUID_TEXT}",
        f"{UUID_TEXT}\n",
        UUID_TEXT.replace("-", "", 1),
        f"{{{UUID_TEXT}",
        f"URN:UUID:{UUID_TEXT}",
        f"{{{UUID_TEXT.replace('-', '')}}}",
        UUID_TEXT.replace("0", "\u0660", 1),
    ],
)
def test_what_only_resembles_a_uuid_is_none(given: str) -> None:
    with pytest.raises(PeerResponseTerminalFactError) as found:
        PeerResponseTerminalCorrelationId.parse(given)
    assert (found.value.kind, found.value.given) == (ErrorKind.INVALID_CORRELATION_ID, given)
