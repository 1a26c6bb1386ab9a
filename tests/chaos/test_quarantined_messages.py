"""Damaged messages are set aside on a live node: their entities and the approvers work again."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

from rookery.bus.roles import Role
from tests.chaos.test_poisoned_journal import FOREIGN, poison, runs
from tests.nodes import NodeProcess, Said, rookery_here
from tests.stock_client import until

REASON = ("--reason", "foreign")


def test_quarantined_messages_are_skipped_live_and_after_a_restart(tmp_path: Path):
    store = ("--store", str(tmp_path / "store"))
    flags = (*store, "--driver", "sandbox", "--metrics-port", "0")
    with NodeProcess(tmp_path, *flags) as node:
        assert asyncio.run(runs(node.url, "a")) == [2]
        asyncio.run(poison(node.url_for(Role.NODE)))
        refused = cli(tmp_path, "run", "-e", "1", "--session", "poisoned")
        assert refused.err.partition(":")[0] == "CHAIN_BROKEN"
        damaged = verified(tmp_path)["damaged"]
        assert len(damaged) == len(FOREIGN)
        only_damaged_messages_can_be_set_aside(tmp_path)
        for one in damaged:
            set_aside(tmp_path, one)
        again = cli(tmp_path, "journal", "quarantine", str(damaged[0]["sequence"]), *REASON)
        assert again.code == 3
        everything_answers(tmp_path, node)
        node.stop()
    with NodeProcess(tmp_path, *flags) as node:
        everything_answers(tmp_path, node)
        export = tmp_path / "export"
        assert cli(tmp_path, "journal", "export", str(export)).code == 0
        assert "foreign" in cli(tmp_path, "journal", "verify", str(export)).out
        assert b"not json" in export.read_bytes(), "an export keeps the bytes"
        node.stop()


def cli(home: Path, *words: str) -> Said:
    return rookery_here(home, *words, "--store", str(home / "store"))


def verified(home: Path) -> Any:
    return json.loads(cli(home, "journal", "verify", "--json").out)


def node_facts(home: Path) -> str:
    """The facts of nodes, as JSON lines."""
    return cli(home, "journal", "tail", "--family", "node", "--lines", "200", "--json").out


def only_damaged_messages_can_be_set_aside(home: Path) -> None:
    for sequence, words in ((1, "is sound"), (10_000, "no entity")):
        said = cli(home, "journal", "quarantine", str(sequence), *REASON)
        assert said.code, said.out
        assert words in said.err


def set_aside(home: Path, damage: Any) -> None:
    """An entity that can be used has to be named."""
    quarantine = partial(cli, home, "journal", "quarantine", str(damage["sequence"]), *REASON)
    said = quarantine()
    if "record of calls" in said.err:
        assert cli(home, "sessions", "destroy", damage["entity"].partition("/")[2]).code == 0
        said = quarantine()
    if said.code:
        confirm = ("--confirm", damage["entity"])
        assert " ".join(confirm) in said.err, "the error has the words that confirm"
        said = quarantine(*confirm)
    assert said.code == 0, said.err


def everything_answers(home: Path, node: NodeProcess) -> None:
    assert asyncio.run(runs(node.url, "a", "poisoned")) == [2, 2]
    asyncio.run(until(lambda: node.probes()[1]["approvers"]["ok"]))
    found = verified(home)
    assert (found["ok"], len(found["quarantined"])) == (True, len(FOREIGN))
    assert {one["reason"] for one in found["quarantined"]} == {"foreign"}
    facts = [json.loads(line)["fact"] for line in node_facts(home).splitlines()]
    assert {fact["by"] for fact in facts if "reason" in fact and "digest" in fact} == {"operator"}
    for words in ("runs list", "sessions list", "approvals list", "nodes list", "approvers list"):
        assert cli(home, *words.split()).code == 0, words


FAMILIES = ("session", "turn", "tool", "approval", "sandbox")
JUNK = b'[{"type":"session.nonsense.v1"}]'


def test_a_run_beside_a_broken_entity_is_answered_and_works_after_a_quarantine(tmp_path: Path):
    flags = ("--store", str(tmp_path / "store"), "--driver", "sandbox", "--metrics-port", "0")
    with NodeProcess(tmp_path, *flags) as node:
        assert asyncio.run(runs(node.url, *FAMILIES)) == [2] * len(FAMILIES)
        asyncio.run(
            poison(node.url_for(Role.NODE), [(f"{name}.{name}", JUNK, {}) for name in FAMILIES])
        )
        for name in FAMILIES:
            said = cli(tmp_path, "run", "-e", "1 + 1", "--session", name)
            assert said.code == 0 or said.err.split(":")[0] in ("CHAIN_BROKEN", "FACT_INVALID")
        assert asyncio.run(runs(node.url, "other")) == [2]
        damaged = verified(tmp_path)["damaged"]
        for one in damaged:
            set_aside(tmp_path, one)
        assert asyncio.run(runs(node.url, *FAMILIES)) == [2] * len(FAMILIES)
        node.stop()
