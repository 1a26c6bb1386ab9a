"""What ``rookery peers accept`` puts into the roster: a realm by its card, a client by its key, or
an agent of A2A by its agent card, which is fetched and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from rookery.actors.peers.agents import AgentClient, accept_card
from rookery.actors.peers.trust import PeerCard
from rookery.bus.clock import SystemClock
from rookery.ops.cli.arguments import read_json_key_file, read_public_key_file
from rookery.ops.cli.options import Options, parse_duration_ms
from rookery.ops.cli.rendering.run_output import print_stderr
from rookery.schemas.calls import ApprovalMode
from rookery.schemas.errors import Refused
from rookery.schemas.peers.roster import Enrolment, Pairing, PeerKind

__all__ = [
    "NamedAgent",
    "PeerTerms",
    "pairing_of_agent",
    "pairing_of_card",
    "pairing_of_client",
    "time_after",
]


class PeerTerms(NamedTuple):
    """What a peer is trusted with, as typed."""

    intents: str
    sessions: str
    expires: str | None
    manual_rotation: bool
    approval: ApprovalMode | None

    @property
    def fields(self) -> dict[str, Any]:
        expires = UNSET if self.expires is None else time_after(self.expires)
        return {
            "intents": self.intents.split(","),
            "sessions": self.sessions.split(","),
            "expires_at_ms": expires,
            "manual_rotation": self.manual_rotation,
            "approval": UNSET if self.approval is None else self.approval,
        }


def pairing_of_card(
    card_: PeerCard, alias: str | None, terms: PeerTerms
) -> tuple[Pairing, Enrolment]:
    fields = {
        "alias": alias or card_.alias,
        "key": card_.enrolment.key,
        "names": [card_.name or "*"],
        **terms.fields,
    }
    return _pairing(fields), card_.enrolment


def pairing_of_client(file: Path, alias: str | None, terms: PeerTerms) -> Pairing:
    if alias is None:
        raise Refused("INVALID_ARGUMENT", "a client needs a name", hint="--as NAME")
    key = read_public_key_file(file)
    fields = {"alias": alias, "kind": PeerKind.CLIENT, "key": key, "names": [alias]}
    return _pairing(fields | terms.fields)


class NamedAgent(NamedTuple):
    """An agent of A2A, as typed."""

    url: str
    alias: str | None
    card_key: Path | None
    lease: str | None


async def pairing_of_agent(named: NamedAgent, terms: PeerTerms, options: Options) -> Pairing:
    """Fetch the agent's card, and check it."""
    if named.alias is None:
        raise Refused("INVALID_ARGUMENT", "an agent needs a name", hint="--as NAME")
    key = "" if named.card_key is None else read_json_key_file(named.card_key)
    client = AgentClient(options.load().config.peers.networks)
    accepted = await accept_card(
        client, named.url, named.alias, card_key=key, lease=named.lease or ""
    )
    if accepted.warning:
        print_stderr(f"warning: {accepted.warning}")
    fields = {
        "alias": named.alias,
        "kind": PeerKind.AGENT,
        "key": accepted.key,
        "names": [named.alias],
        "agent": msgspec.to_builtins(accepted.agent),
    }
    return _pairing(fields | terms.fields)


def _pairing(fields: dict[str, Any]) -> Pairing:
    given = {name: value for name, value in fields.items() if value is not UNSET}
    try:
        return msgspec.convert(given, Pairing)
    except msgspec.ValidationError as error:
        raise Refused("INVALID_ARGUMENT", str(error)) from None


def time_after(duration: str) -> int:
    now_ms = SystemClock().now_ms()
    return now_ms if duration in ("0", "0s") else now_ms + parse_duration_ms(duration)
