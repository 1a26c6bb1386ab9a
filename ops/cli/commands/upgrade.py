"""``rookery realm``: change a realm as a whole, while it has no node."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from rookery.bus.realm_upgrade import RealmUpgrade, apply_upgrade, plan_upgrade
from rookery.ops.cli.access.local_server import local_server
from rookery.ops.cli.access.offline_realm import open_realm
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.schemas.errors import Failed

__all__ = ["app"]

app = App(name="realm", help_format="plaintext")


@app.command
def upgrade(
    *,
    check: Annotated[
        bool, Parameter(help="Print what would change, and change nothing.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Upgrade a realm of an older version to the format of this version, in place.

    No message changes. Stop all nodes of the realm, upgrade it, then start nodes of this version.
    Older versions refuse the realm afterwards."""
    with local_server(options):
        plan, done = asyncio.run(_upgrade(options, apply=not check))
    if options.json:
        print_json({**msgspec.structs.asdict(plan), "done": done})
        return 0
    print_line(_plan_words(plan, done=done))
    return 0


async def _upgrade(options: Options, *, apply: bool) -> tuple[RealmUpgrade, bool]:
    async with open_realm(options) as realm:
        plan = await plan_upgrade(realm.connection, realm.subjects)
        if not plan.is_needed:
            return plan, False
        if nodes := sorted(await realm.nodes()):
            raise Failed(
                "REALM_IN_USE",
                f"realm {plan.realm} is served by {', '.join(nodes)}",
                hint="stop them first: rookery nodes list",
            )
        if apply:
            await apply_upgrade(realm.connection, realm.subjects)
        return plan, apply


def _plan_words(plan: RealmUpgrade, *, done: bool) -> str:
    if not plan.is_needed:
        return f"realm {plan.realm} has format {plan.format} already"
    change = "was brought" if done else "would be brought"
    return (
        f"realm {plan.realm} {change} from format {plan.format} to {plan.to}: {plan.stream} takes "
        f"facts from the owner of each partition alone; its {plan.messages} messages stay"
    )
