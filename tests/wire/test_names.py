"""Wire names are permanent: added, never renamed. The list is in ``names.txt``."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from rookery.schemas import facts
from rookery.schemas.codec import wire_names
from rookery.schemas.commands import COMMANDS
from rookery.schemas.envelope import Fact
from rookery.schemas.export import FAMILIES
from rookery.schemas.replies import REPLIES

PINNED = Path(__file__).with_name("names.txt")


def present_names() -> set[str]:
    tags = {f"fact {tag}" for union in FAMILIES.values() for tag in wire_names(union)}
    return tags | {f"command {verb}" for verb in COMMANDS}


def test_no_wire_name_was_dropped_or_renamed_and_new_ones_are_written_down():
    pinned = set(PINNED.read_text(encoding="utf-8").splitlines())
    gone, new = sorted(pinned - present_names()), sorted(present_names() - pinned)
    assert not gone, f"stored facts and clients still use {gone}"
    assert not new, f"add these lines to {PINNED.name}: {new}"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fact_is_named_by_its_family_its_kind_and_its_version(family: str):
    for name in wire_names(FAMILIES[family]):
        assert re.fullmatch(rf"{family}\.[a-z_]+\.v[1-9][0-9]*", name)


def test_every_family_is_exported():
    modules = {module.name for module in pkgutil.iter_modules(facts.__path__)}
    assert modules - {"run_progress"} == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_fact_defined_is_in_its_family(family: str):
    module = importlib.import_module(f"rookery.schemas.facts.{family}")
    defined = {
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Fact)
        and kind.__module__ == module.__name__
        and not kind.__name__.startswith("_")
    }
    assert defined == set(wire_names(FAMILIES[family]).values())


def test_every_verb_declares_its_reply():
    missing = sorted(set(COMMANDS) - set(REPLIES))
    assert not missing, f"add the reply of each to REPLIES in schemas/replies.py: {missing}"
    assert set(REPLIES) <= set(COMMANDS)
