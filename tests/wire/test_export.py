"""The documents under ``schemas/generated`` match the code and are consistent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.commands import command_messages
from rookery.bus.journal import reader
from rookery.schemas import export
from rookery.schemas.codec import wire_names
from rookery.schemas.commands import COMMANDS, INTERNAL_VERBS, SIGNED_VERBS
from rookery.schemas.envelope import HELD_BY
from rookery.schemas.reads import READS


@pytest.fixture(scope="module")
def asyncapi() -> export.Document:
    return json.loads(export.documents()["asyncapi.json"])


@pytest.fixture(scope="module")
def schemas() -> export.Document:
    return json.loads(export.documents()["schemas.json"])


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolve(document: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    for step in reference[2:].split("/"):
        document = document[step]
    return document


def test_the_committed_documents_are_up_to_date():
    committed = {path.name: path.read_text(encoding="utf-8") for path in export.FOLDER.iterdir()}
    current = committed == export.documents()
    assert current, "run: python -m rookery.schemas.export"


def test_check_names_outdated_documents_and_writing_updates_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(export, "FOLDER", tmp_path / "generated")
    assert export.main(["--check"]) == 1
    assert not export.FOLDER.exists()
    assert export.main([]) == 0
    assert export.main(["--check"]) == 0
    (export.FOLDER / "schemas.json").write_text("{}")
    capsys.readouterr()
    assert export.main(["--check"]) == 1
    assert capsys.readouterr().out == "out of date: schemas.json\n"


def test_every_reference_leads_somewhere(asyncapi: export.Document, schemas: export.Document):
    for document in (asyncapi, schemas):
        found = set(references(document))
        assert found
        for reference in found:
            assert resolve(document, reference)


def test_the_schemas_hold_every_fact_and_every_command(
    asyncapi: export.Document, schemas: export.Document
):
    definitions = schemas["$defs"]
    for union in export.FAMILIES.values():
        for name in wire_names(union):
            assert definitions[name]["properties"]["type"] == {"enum": [name]}
            assert definitions[name].get("additionalProperties") is None
    for name in ("RunRequestInput", "SessionLimitsInput", "Cancel", "HandleInput"):
        assert definitions[name]["additionalProperties"] is False
    assert json.loads(json.dumps(definitions)) == json.loads(
        json.dumps(asyncapi["components"]["schemas"]).replace("#/components/schemas/", "#/$defs/")
    )


def test_asyncapi_has_what_version_3_requires(asyncapi: export.Document):
    assert asyncapi["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= set(asyncapi["info"])
    for name, channel in asyncapi["channels"].items():
        assert "address" in channel
        parameters = set(channel.get("parameters", {}))
        address = channel["address"] or ""
        known = ("realm", "key", "digest", "n", "id")
        assert parameters == {p for p in known if f"{{{p}}}" in address}, name
        assert address.count("{") == len(parameters)
        assert channel["messages"]
    for operation in asyncapi["operations"].values():
        assert operation["action"] in ("send", "receive")
        for part in (operation, operation.get("reply", operation)):
            channel = part["channel"]["$ref"]
            assert channel.startswith("#/channels/")
            for message in part["messages"]:
                assert message["$ref"].startswith(f"{channel}/messages/")
    for message in asyncapi["components"]["messages"].values():
        assert message["payload"]


def test_asyncapi_has_a_channel_for_every_subject_a_client_may_use(asyncapi: export.Document):
    addresses = {channel["address"] for channel in asyncapi["channels"].values()} - {None}
    expected = {export.FACT_ADDRESS.replace("{family}", entity) for entity in export.ENTITIES}
    for door in (export.COMMAND_ADDRESS, export.REQUEST_ADDRESS):
        expected |= {door.replace("{verb}", verb) for verb in COMMANDS.keys() - INTERNAL_VERBS}
    expected -= {export.REQUEST_ADDRESS.replace("{verb}", verb) for verb in SIGNED_VERBS}
    expected |= {read.address for read in READS.values()} | {export.OUTPUT_ADDRESS}
    assert addresses == expected


def test_every_fact_is_in_the_message_of_its_family_or_of_the_entity_that_holds_it(
    asyncapi: export.Document,
):
    for family, union in export.FAMILIES.items():
        entities = {family, HELD_BY.get(family, family)} & export.ENTITIES.keys()
        messages = [asyncapi["components"]["messages"][f"ev.{one}"] for one in entities]
        found = {name for message in messages for name in references(message)}
        assert {f"#/components/schemas/{name}" for name in wire_names(union)} <= found


def test_the_documented_headers_are_the_ones_in_use(asyncapi: export.Document):
    def documented(trait: str) -> set[str]:
        return set(asyncapi["components"]["messageTraits"][trait]["headers"]["properties"])

    command = {
        command_messages.MESSAGE_ID,
        command_messages.MODE,
        command_messages.INPUT_SOURCE,
        command_messages.TRACEPARENT,
        command_messages.CONTENT_TYPE,
    }
    assert documented("request") == command
    assert documented("durable") == command | {command_messages.REPLY}
    assert documented("facts") == {
        reader.MESSAGE_ID,
        reader.CHAIN,
        reader.KINDS,
    }
    assert command_messages.CODE in documented("refusal")
