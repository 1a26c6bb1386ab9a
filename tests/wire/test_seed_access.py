"""How each method, case and error text of the seeds is reached by a public way.

``seed_reach.json`` names for each of them the test that reaches it through a node, a client or the
command line; or who drives what no node does (``outside driver``, ``model driver``); or why nothing
reaches it (``unreachable``). No entry is ``open``: a new one is traced when it is written.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMES: dict[str, Any] = json.loads((HERE / "seed_names.json").read_text(encoding="utf-8"))["seeds"]
REACH: dict[str, Any] = json.loads((HERE / "seed_reach.json").read_text(encoding="utf-8"))
REACHED_MIN = 334
"""A public way that there was does not end: write down a larger number only."""
TEXTS = 30
"""Error texts of the seeds, in quotation marks behind the number of their seed."""


def entries_of_seeds() -> set[str]:
    found = set[str]()
    for seed, names in NAMES.items():
        for name, about in names.items():
            members = chain(about.get("methods", ()), about.get("cases", ()))
            found |= {f"{seed}.{name}.{member}" for member in members}
            if "function" in about:
                found.add(f"{seed}.{name}")
    return found


@cache
def source_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_every_method_case_and_text_of_the_seeds_has_one_entry():
    listed = Counter(
        chain(
            chain.from_iterable(REACH["reached"].values()),
            REACH["outside driver"],
            REACH["model driver"],
            REACH["unreachable"],
            REACH["open"],
        )
    )
    assert [entry for entry, times in listed.items() if times > 1] == []
    texts = {entry for entry in listed if entry[3:4] == " "}
    assert listed.keys() - texts == entries_of_seeds()
    assert len(texts) == TEXTS


def test_every_entry_that_is_reached_names_a_test_that_there_is():
    for test in REACH["reached"]:
        path, _, name = test.partition("::")
        assert f"def {name}(" in source_of(path), test


def test_what_is_unreachable_says_why():
    assert all(len(why.split()) > 3 for why in REACH["unreachable"].values())


def test_no_entry_is_open():
    assert REACH["open"] == []


def test_no_entry_moves_back():
    assert sum(map(len, REACH["reached"].values())) >= REACHED_MIN
