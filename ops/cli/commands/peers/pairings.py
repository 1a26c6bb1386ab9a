"""What ``rookery peers accept`` puts into the roster: a realm by its card, a client by its key, or
an agent of A2A by its agent card, which is fetched and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter
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
    "NO_AGENT",
    "PLAIN_TERMS",
    "NamedAgent",
    "PeerTerms",
    "pairing_of_agent",
    "pairing_of_card",
    "pairing_of_client",
    "time_after",
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PeerTerms:
    """What a peer is trusted with."""

    intents: Annotated[str, Parameter(help="What it may request: 'review,ask'.")] = "*"
    sessions: Annotated[str, Parameter(help="Which sessions it may address: 'coder*'.")] = "*"
    expires: Annotated[
        str | None, Parameter(help="It is not trusted after this time: 12h or 90d.")
    ] = None
    manual_rotation: Annotated[
        bool, Parameter(help="Its next key needs an approver's signature, too.", negative="")
    ] = False
    approval: Annotated[
        ApprovalMode | None,
        Parameter(help="What a program needs to send to it; default: manual."),
    ] = None

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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class NamedAgent:
    """An agent of A2A, instead of a realm or a client."""

    a2a: Annotated[
        str | None,
        Parameter(help="Instead of a card: the URL of an agent of A2A, or of its agent card."),
    ] = None
    card_key: Annotated[
        Path | None,
        Parameter(help="With --a2a: the key that must have signed its card, as JWK or PEM."),
    ] = None
    lease: Annotated[
        str | None, Parameter(help="With --a2a: the binding whose credential the agent gets.")
    ] = None

    def check(self) -> None:
        """Refuse what only an agent has, if there is none."""
        if self.a2a is None and (self.card_key is not None or self.lease is not None):
            raise Refused("INVALID_ARGUMENT", "--card-key and --lease are for --a2a URL")


NO_AGENT: Final = NamedAgent()
PLAIN_TERMS: Final = PeerTerms()


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


async def pairing_of_agent(
    url: str, agent: NamedAgent, alias: str | None, terms: PeerTerms, options: Options
) -> Pairing:
    """Fetch the agent's card, and check it."""
    if alias is None:
        raise Refused("INVALID_ARGUMENT", "an agent needs a name", hint="--as NAME")
    key = "" if agent.card_key is None else read_json_key_file(agent.card_key)
    client = AgentClient(options.load().config.peers.networks)
    accepted = await accept_card(client, url, alias, card_key=key, lease=agent.lease or "")
    if accepted.warning:
        print_stderr(f"warning: {accepted.warning}")
    fields = {
        "alias": alias,
        "kind": PeerKind.AGENT,
        "key": accepted.key,
        "names": [alias],
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
