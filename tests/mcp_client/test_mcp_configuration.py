"""The files that people have for their servers: what is read, and how bad input is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.actors.protection.sensitive_values import NO_SEAL
from rookery.bus.clock import entropy
from rookery.bus.sealed_secrets import KEY_BYTES, KeyRing, RingSeal
from rookery.ops.mcp_client import sources_of
from rookery.ops.mcp_client.source_values import SourceValues
from rookery.schemas.calls import ApprovalMode, AutoApproval, AutoRule
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.protection.sealed_values import SealedValue
from rookery.schemas.run import SideEffect
from rookery.schemas.surfaces import SurfaceKind, SurfaceSource
from tests.mcp_client.server_fixtures import code_of, hostile, opened, play

SECRET = "sk-0123456789-secret"
SEAL = RingSeal(KeyRing([entropy(KEY_BYTES)]), "default", entropy)


def read(folder: Path, servers: Any, *, seal: Any = SEAL) -> dict[str, SurfaceSource]:
    path = folder / "servers.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return sources_of(path, seal)


def test_servers_by_stdio_are_read(tmp_path: Path):
    files = {
        "command": "npx",
        "args": ["-y", "server-filesystem", "/data"],
        "env": {"LEVEL": "${LEVEL:-info}", "TOKEN": "${TOKEN}", "PORT": 80, "ON": True},
        "cwd": "/srv",
        "autoApprove": ["everything"],
        "timeout": 60,
    }
    found = read(tmp_path, {"files": files, "off": {"command": "x", "disabled": True}})
    assert list(found) == ["files"]
    source = found["files"]
    assert source.kind is SurfaceKind.MCP_STDIO
    assert source.command == ("npx", "-y", "server-filesystem", "/data")
    assert source.folder == "/srv"
    assert (source.environment["LEVEL"], source.environment["TOKEN"]) == (
        "${LEVEL:-info}",
        "${TOKEN}",
    )
    sealed = {name for name, value in source.environment.items() if type(value) is SealedValue}
    assert sealed == {"PORT", "ON"}
    assert source.policy.default.approval is None


def test_servers_by_http_are_read_with_their_binding_and_policy(tmp_path: Path):
    tickets = {
        "type": "http",
        "url": "https://tickets.example/mcp",
        "headers": {"X-Team": "${TEAM}", "X-Key": SECRET},
        "rookery": {
            "binding": "tickets:eu",
            "connect_timeout_ms": 5_000,
            "policy": {
                "default": {"approval": {"auto": {"rule": "args.amount <= 50"}}},
                "tools": {"read": {"approval": "none", "side_effect": "read"}},
                "allow": ["read", "pay"],
            },
        },
    }
    source = read(tmp_path, {"tickets": tickets})["tickets"]
    assert (source.kind, source.url) == (SurfaceKind.MCP_HTTP, "https://tickets.example/mcp")
    assert (source.binding, source.connect_timeout_ms) == ("tickets:eu", 5_000)
    rule = AutoApproval(AutoRule("args.amount <= 50"))
    assert source.policy.default.approval == rule
    of_read = source.policy.tools["read"]
    assert (of_read.approval, of_read.side_effect) == (ApprovalMode.NONE, SideEffect.READ)


def test_no_fact_has_a_value_that_the_file_writes_out(tmp_path: Path):
    servers = {
        "a": {"command": "x", "env": {"KEY": SECRET}},
        "b": {"url": "https://b.example", "headers": {"Authorization": f"Bearer {SECRET}"}},
        "c": {"command": "x", "env": {"KEY": f"{SECRET}-${{NAME}}"}},
    }
    found = read(tmp_path, servers)
    assert SECRET.encode() not in encode_json(found)
    decoded = msgspec.json.decode(encode_json(found), type=dict[str, SurfaceSource])
    assert decoded == found
    values = SourceValues("b", SEAL, {})
    assert values.read("headers", decoded["b"].headers) == {"Authorization": f"Bearer {SECRET}"}
    assert values.scrubbers
    assert all(SECRET not in one.scrub_text(f"<{SECRET}>") for one in values.scrubbers)
    values = SourceValues("c", SEAL, {"NAME": "x"})
    assert values.read("environment", decoded["c"].environment) == {"KEY": f"{SECRET}-x"}
    with pytest.raises(Failed, match="SEALED_VALUE_CORRUPT"):
        SourceValues("other", SEAL, {}).read("headers", decoded["b"].headers)
    with pytest.raises(Failed, match="SURFACE_UNAVAILABLE"):
        SourceValues("c", SEAL, {}).read("environment", decoded["c"].environment)


def test_a_server_gets_what_was_sealed_and_its_answers_do_not_show_it():
    sealed = SEAL.seal(json.dumps(SECRET).encode(), "surface/shop", "environment/API_TOKEN")

    async def scenario() -> None:
        source = hostile(environment={"API_TOKEN": sealed})
        async with opened(source, seal=SEAL) as server:
            outcome = await server.call("fail")
            assert code_of(outcome) == "TOOL_ERROR"
            assert outcome.error.message == "it did not work: [credential]"
            found = (await server.call("environ")).value["environment"]
            assert found["API_TOKEN"] == "[credential]"
            assert server.connection.log == ("started as usual [credential]",)

    play(scenario())


def test_without_a_key_values_have_to_be_variables(tmp_path: Path):
    with pytest.raises(Refused, match="SEALING_KEY_MISSING") as refused:
        read(tmp_path, {"a": {"command": "x", "env": {"KEY": SECRET}}}, seal=NO_SEAL)
    assert "mcpServers.a.env.KEY" in refused.value.message
    assert "${KEY}" in refused.value.hint
    assert read(tmp_path, {"a": {"command": "x", "env": {"KEY": "${KEY}"}}}, seal=NO_SEAL)


HTTP = {"url": "https://a.example/mcp"}
WRONG: list[tuple[str, Any, str]] = [
    ("a section", [], "mcpServers is no object"),
    ("no server", {}, "mcpServers has no server"),
    ("a name", {"a b": {"command": "x"}}, "mcpServers.a b is no name"),
    ("a text", {"a": "x"}, "mcpServers.a is no object"),
    ("neither", {"a": {}}, "mcpServers.a has neither"),
    ("both", {"a": {"command": "x", **HTTP}}, "mcpServers.a has both"),
    ("sse", {"a": {"type": "sse", **HTTP}}, "mcpServers.a.type is an older transport"),
    ("a type", {"a": {"type": "pigeon", **HTTP}}, "mcpServers.a.type 'pigeon' is none of"),
    ("the other", {"a": {"type": "http", "command": "x"}}, "mcpServers.a.type is http"),
    ("a key", {"a": {"comand": "x", **HTTP}}, "mcpServers.a.comand is no key"),
    ("env of http", {"a": {"env": {}, **HTTP}}, "mcpServers.a.env is no key"),
    ("args", {"a": {"command": "x", "args": "y"}}, "mcpServers.a.args is no list"),
    ("a command", {"a": {"command": ["x"]}}, "mcpServers.a.command is no str"),
    ("no command", {"a": {"command": ""}}, "mcpServers.a.command is empty"),
    ("relative", {"a": {"command": "./x"}}, "mcpServers.a.command is a relative path"),
    ("a folder", {"a": {"command": "x", "cwd": "y"}}, "mcpServers.a.cwd is a relative path"),
    ("env", {"a": {"command": "x", "env": {"A": [1]}}}, "mcpServers.a.env.A is no string"),
    ("a line", {"a": {"command": "x", "env": {"A": "1\n2"}}}, "mcpServers.a.env.A has a line end"),
    ("a variable", {"a": {"command": "x", "env": {"A=B": ""}}}, "mcpServers.a.env.A=B is no name"),
    ("a header", {"a": {"headers": {"A B": "x"}, **HTTP}}, "mcpServers.a.headers.A B is no header"),
    ("a url", {"a": {"url": "ftp://x"}}, "mcpServers.a.url is no address"),
    ("a password", {"a": {"url": "https://a:b@c/"}}, "mcpServers.a.url has a password"),
    ("a token", {"a": {"url": f"https://c/?api_key={SECRET}"}}, "mcpServers.a.url has a secret"),
    (
        "an argument",
        {"a": {"command": "x", "args": ["--token", SECRET]}},
        "mcpServers.a.args has a secret",
    ),
    ("rookery", {"a": {"rookery": {"x": 1}, **HTTP}}, "mcpServers.a.rookery.x is no key"),
    (
        "a target",
        {"a": {"rookery": {"binding": "b"}, "command": "x"}},
        "mcpServers.a.rookery.binding_target names no variable",
    ),
    (
        "a target alone",
        {"a": {"rookery": {"binding_target": "B"}, **HTTP}},
        "mcpServers.a.rookery.binding_target has no binding",
    ),
    (
        "two values",
        {"a": {"rookery": {"binding": "b"}, "headers": {"authorization": "${X}"}, **HTTP}},
        "mcpServers.a.rookery.binding_target Authorization has a value",
    ),
    (
        "a binding",
        {"a": {"rookery": {"binding": "a:b:c"}, **HTTP}},
        "mcpServers.a.rookery.binding is none",
    ),
    (
        "memory",
        {"a": {"rookery": {"memory_bytes": 1}, "command": "x"}},
        "mcpServers.a.rookery.memory_bytes is less",
    ),
    (
        "a policy",
        {"a": {"rookery": {"policy": {"x": 1}}, **HTTP}},
        "mcpServers.a.rookery.policy.x is no key",
    ),
    (
        "an approval",
        {"a": {"rookery": {"policy": {"tools": {"t": {"approval": "sure"}}}}, **HTTP}},
        "mcpServers.a.rookery.policy.tools.t is invalid",
    ),
    (
        "a time",
        {"a": {"rookery": {"policy": {"default": {"timeout_ms": 0}}}, **HTTP}},
        "mcpServers.a.rookery.policy.default.timeout_ms is not from",
    ),
]


@pytest.mark.parametrize(
    ("servers", "words"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_a_bad_input_is_refused_with_its_file_and_key(servers: Any, words: str, tmp_path: Path):
    with pytest.raises(Refused) as refused:
        read(tmp_path, servers)
    assert refused.value.code in ("CONFIG_INVALID", "CONFIG_UNKNOWN_KEY")
    assert refused.value.message.startswith(f"{tmp_path / 'servers.json'}: {words}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ("// a comment\n{}", "is no JSON"),
        ('{"mcpServers": {"a": {}, "a": {}}}', "has 'a' twice"),
        ("[]", "the file is no object"),
        ("[" * 100_000, "is no JSON"),
        (" " * (2 << 20), "has 2097152 bytes"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(text: str, words: str, tmp_path: Path):
    path = tmp_path / "servers.json"
    path.write_text(text)
    with pytest.raises(Refused, match="CONFIG_INVALID") as refused:
        sources_of(path)
    assert words in refused.value.message


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(Refused, match="cannot be read"):
        sources_of(tmp_path / "none.json")
