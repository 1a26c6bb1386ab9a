"""``rookery policy show, explain``: what the policy of a node allows, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from msgspec import UNSET

from rookery.bus.client import Client
from rookery.ops.cli.access.realm_access import with_realm_client
from rookery.ops.cli.options import NO_OPTIONS, NO_TOOLS, Options
from rookery.ops.cli.output import print_json, print_line, print_table, printable
from rookery.schemas.errors import Refused
from rookery.schemas.ids import decode_typed_text
from rookery.schemas.protection.policy import (
    ExplainPolicy,
    Isolation,
    PolicyExplanation,
    PolicySettings,
)

__all__ = ["app"]

app = App(
    name="policy",
    help="Show the policy of a node's runs, and explain what it decides about a tool.",
    help_format="plaintext",
)


@app.command
def show(*, options: Options = NO_OPTIONS) -> int:
    """Show the policy of runs that start now: [policy] of the node's configuration."""

    async def work(client: Client) -> int:
        found = await _ask(client, ExplainPolicy())
        if options.json:
            print_json(found)
            return 0
        print_table(["FOR", "WHERE", "DECISION"], _rows(found.policy), empty="")
        if not found.digest:
            print_line("the default policy: it allows every call that its run has a right to")
        if found.not_bound:
            names = ", ".join(map(printable, found.not_bound))
            print_line(f"not bound by the network's hosts, as no argument names one: {names}")
        return 0

    return with_realm_client(options, NO_TOOLS, work)


@app.command
def explain(
    tool: Annotated[str, Parameter(help="The tool's name in programs.")],
    *,
    args: Annotated[
        str | None, Parameter(help="Arguments by name, as JSON: what is decided about this call.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Say what is decided about the calls of a tool, step by step.

    The rights of a run come first: `rookery sessions rights SESSION`."""
    query = ExplainPolicy(tool=tool, arguments=UNSET if args is None else _arguments(args))

    async def work(client: Client) -> int:
        found = await _ask(client, query)
        if options.json:
            print_json(found)
            return 0
        rows = [[one.step, one.decision, one.code, printable(one.text)] for one in found.steps]
        print_table(["STEP", "DECISION", "CODE", "WHY"], rows, empty="")
        print_line(f"{printable(tool)}: {found.decision}, {_terms(found)}")
        return 0

    return with_realm_client(options, NO_TOOLS, work)


async def _ask(client: Client, query: ExplainPolicy) -> PolicyExplanation:
    reply = await client.ask("policy", "all", query)
    return msgspec.convert(reply, PolicyExplanation, dec_hook=decode_typed_text)


def _arguments(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Refused(
            "INVALID_JSON", f"--args: {error}", hint="""as in --args '{"amount": 40}'"""
        ) from None


def _rows(policy: PolicySettings) -> Iterator[list[object]]:
    for rule in policy.rules:
        yield [rule.permission, rule.source or "every surface", rule.decision]
    yield ["any other permission", "every surface", policy.default]
    yield ["no known permission", "every surface", policy.undeclared]
    tables: dict[str, Mapping[str, Any]] = {
        "execution": policy.execution,
        "network": policy.network,
    }
    for what, entries in tables.items():
        for path in sorted(entries):
            yield [what, path, _setting(entries[path])]
    for path, terms in sorted(policy.approvals.items()):
        risk = "" if terms.risk is UNSET else f"risk {terms.risk}"
        allowed = () if terms.allowed_decisions is UNSET else terms.allowed_decisions
        yield ["approvals", path, "; ".join(filter(None, (risk, ", ".join(allowed))))]


def _setting(value: str | Isolation | tuple[str, ...]) -> str:
    match value:
        case Isolation():
            return f"isolated by {value.require_isolation}, else {value.otherwise}"
        case str():
            return value
    return printable(", ".join(value)) or "no host"


def _terms(found: PolicyExplanation) -> str:
    allowed = found.allowed_decisions
    decisions = "" if allowed is UNSET else ", ".join(allowed)
    return f"effect {found.effect_class}, risk {found.risk}, an approver may say {decisions}"
