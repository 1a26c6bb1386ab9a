"""The list of deciders is complete, and importing it loads none of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from typing import Any

import pytest

from rookery.actors import DECIDERS, DeciderHost
from rookery.actors.execution.queries.snapshots import FAMILIES as RESTARTED_WITH_THEIR_SESSION
from rookery.actors.kernel.machines import MachineDecider
from rookery.schemas.codec import wire_names
from rookery.schemas.commands import COMMANDS, HandleInput
from rookery.schemas.envelope import HELD_BY
from rookery.schemas.export import ENTITIES, FAMILIES
from tests.laws.shapes import CONCERNS
from tests.laws.source import Module, dotted, functions, modules

LOADED: dict[str, Any] = {family: entry.load() for family, entry in DECIDERS.items()}
"""Before a test runs: pycryptodome starts a process when it is imported, to know the machine."""


def test_every_exported_family_has_a_decider():
    assert set(DECIDERS) == set(ENTITIES) - {"tool"}, "whose own messages are older"
    assert set(DECIDERS) >= set(FAMILIES) - set(HELD_BY)


@pytest.mark.parametrize("family", DECIDERS)
def test_a_decider_reads_exactly_the_facts_that_the_contract_exports(family: str):
    decider = LOADED[family]
    assert decider.family == family
    assert decider.codec.names == wire_names(ENTITIES[family])


def test_every_package_with_a_decider_is_listed():
    packages = {
        f"actors/{entry.module.partition('.')[0]}"
        for entry in DECIDERS.values()
        if entry.host is not DeciderHost.KERNEL
    }
    found = {module.package for module in modules("actors") if module.name == "decider"}
    assert packages == found - {"actors/kernel", "actors/kernel/machines"} == set(CONCERNS)


def test_a_verb_belongs_to_the_contract_and_to_one_decider():
    verbs = Counter(chain.from_iterable(decider.verbs for decider in LOADED.values()))
    assert set(verbs) <= set(COMMANDS)
    assert {verb for verb, count in verbs.items() if count > 1} == set()


@pytest.mark.parametrize("family", DECIDERS)
def test_a_decider_has_a_rule_for_the_body_of_each_of_its_verbs(family: str):
    decider = LOADED[family]
    path = f"{decider.__module__.removeprefix('rookery.').replace('.', '/')}.py"
    (module,) = (one for one in modules("actors") if one.path == path)
    ruled = set(bodies_with_a_rule(module))
    if issubclass(decider, MachineDecider):
        ruled.add(HandleInput)
    for verb, body in decider.verbs.items():
        assert body in ruled, f"{verb}: `decide` of {path} has no rule for {body.__name__}"


def bodies_with_a_rule(module: Module) -> Iterator[Any]:
    """The classes that ``decide`` and its parts match, and those in the tables of rules."""
    names = vars(import_module(f"rookery.{module.path.removesuffix('.py').replace('/', '.')}"))
    yield from (*names.get("_RULES", ()), *names.get("CALL_COMMANDS", ()))
    for function in functions(module):
        if function.name.lstrip("_").startswith("decide"):
            for node in ast.walk(function):
                if isinstance(node, ast.MatchClass):
                    yield names.get(dotted(node.cls))


def test_destroy_restarts_every_history_that_can_be_restarted():
    restartable = {family for family, one in LOADED.items() if hasattr(one, "restart_fact")}
    assert restartable == {"session", *RESTARTED_WITH_THEIR_SESSION}


def test_importing_the_list_loads_no_decider():
    program = (
        "import sys; from rookery.actors import DECIDERS; assert DECIDERS;"
        "sys.exit(any(name.endswith('decider') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0
