"""The terms of a responder: which intents it serves, and with which parameters. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import UNSET

from rookery.actors.tools.validation import CapabilityChecks
from rookery.schemas.calls import Capability
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused
from rookery.schemas.peers.items import Responder

__all__ = ["check_responder", "check_terms"]

_PARAMS: Final = "params"
_SCHEMAS_MAX: Final = 256
"""Compiled ones that a node remembers."""


def check_responder(responder: Responder) -> None:
    """``Refused`` if it is both a program and an agent, or neither, or if a schema of its terms is
    none."""
    if bool(responder.code) == bool(responder.agent):
        raise Refused("INVALID_ARGUMENT", "a responder is a program or an agent: code, or agent")
    for terms in ({} if responder.intents is UNSET else responder.intents).values():
        if terms.params is not UNSET:
            _checks_of(canonical_json(terms.params))


def check_terms(responder: Responder, intent: str, params: Any) -> None:
    """``Refused`` if the responder does not serve the request."""
    terms = responder.terms_of(intent)
    if terms is None:
        raise Refused("PEER_INTENT_NOT_ALLOWED", f"the session does not serve {intent}")
    if terms.params is UNSET:
        return
    try:
        _checks_of(canonical_json(terms.params)).check_arguments((params,), {})
    except Refused as refusal:
        raise Refused("PEER_PARAMS_INVALID", refusal.message) from None


@lru_cache(_SCHEMAS_MAX)
def _checks_of(schema: bytes) -> CapabilityChecks:
    """The checks of one argument with this schema."""
    input_schema = {
        "type": "object",
        "properties": {_PARAMS: msgspec.json.decode(schema)},
        "required": [_PARAMS],
    }
    return CapabilityChecks(Capability(name="request", description="", input_schema=input_schema))
