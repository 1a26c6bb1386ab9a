"""Calls that began in the older entity ``tool`` end in the entity of their turn.

The journals of the scenarios are laid before a node in the older layout, cut after every message:
so a run of each is taken over in every phase of its calls.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import pytest

from rookery.bus.ports import StoredMessage
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId
from rookery.schemas.facts.tool import Adopted, IntentRecorded
from tests.execution.node_remains import STORIES, Left, LeftWorld, journal_of
from tests.execution.scripted_driver import SESSION
from tests.execution.sessions.test_session_survival import at, cancelled, followed

Scenario = Callable[[LeftWorld], None]


def in_older_layout(messages: tuple[StoredMessage, ...]) -> tuple[StoredMessage, ...]:
    """The same facts, with those of calls in messages of the entity ``tool``."""
    ids: dict[str, str] = {}
    counts: Counter[str] = Counter()
    chains: dict[EntityId, str] = {}
    laid: list[StoredMessage] = []
    for stored in messages:
        for family, facts in _by_family(stored):
            entity = EntityId(family, SESSION)
            body = json.dumps([_renamed(fact, family, ids, counts) for fact in facts]).encode()
            chains[entity] = chain(chains.get(entity, ZERO_CHAIN), body)
            name = f"{stored.message_id}.{len(laid)}"
            laid.append(
                StoredMessage(
                    len(laid) + 1, entity, name, chains[entity], body, stored.stored_at_ms
                )
            )
    return tuple(laid)


def _by_family(stored: StoredMessage) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    facts = json.loads(stored.body)
    for family, some in groupby(facts, key=lambda fact: fact["type"].partition(".")[0]):
        yield family, list(some)


def _renamed(
    fact: dict[str, Any], family: str, ids: dict[str, str], counts: Counter[str]
) -> dict[str, Any]:
    """The fact with its number in its own family, and with the causes that name such facts."""
    counts[family] += 1
    ids[fact["id"]] = f"{family}.{SESSION}.{counts[family]}"
    causes = []
    for cause in fact["cause"]:
        cause_id, slash, by = cause.rpartition("/")
        causes.append(f"{ids.get(cause_id, cause_id)}{slash}{by}")
    return fact | {"id": ids[fact["id"]], "cause": causes}


def older_lefts(scenario: Scenario) -> Iterator[Left]:
    messages, blobs = journal_of(scenario)
    older = in_older_layout(messages)
    for end in range(1, len(older) + 1):
        yield Left(f"{scenario.__name__}, {end} older messages", older[:end], blobs)


def intents(world: LeftWorld) -> Counter[str]:
    """The intents of each call, in both layouts."""
    facts = world.of_family("tool")
    return Counter(fact.operation_id for fact in facts if isinstance(fact, IntentRecorded))


@pytest.mark.parametrize("command", [cancelled, followed])
@pytest.mark.parametrize("scenario", STORIES, ids=lambda scenario: scenario.__name__)
def test_a_run_is_taken_over_in_every_phase_of_its_older_calls(
    scenario: Scenario, command: Callable[[LeftWorld], None]
):
    adopted = 0
    for left in older_lefts(scenario):
        with at(left), LeftWorld() as world:
            world.take_up(left)
            command(world)
            assert (
                world.stored("tool", SESSION) == world.stored("tool", SESSION)[: len(left.messages)]
            )
            recorded = intents(world)
            for operation, executions in world.backend.executions.items():
                assert executions <= recorded[operation], operation
            adopted += sum(isinstance(fact, Adopted) for fact in world.of_family("tool"))
    assert adopted
