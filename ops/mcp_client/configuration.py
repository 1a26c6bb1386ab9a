"""The servers of a file in the form that clients of MCP share, as sources of surfaces::

    {"mcpServers": {
      "files": {"command": "mcp-server-filesystem", "args": ["/data"],
                "rookery": {"policy": {"tools": {"read_file": {"approval": "none"}}}}},
      "tickets": {"type": "http", "url": "https://tickets.example/mcp",
                  "rookery": {"binding": "tickets"}}}}

``rookery`` has what other clients do not know: a ``binding`` of a lease and its ``binding_target``,
``memory_bytes``, ``cpu_seconds``, ``connect_timeout_ms`` and a ``policy``. What the file says of
approvals to other clients (``autoApprove``) does not count here. ``${NAME}`` stays as it is: each
node replaces it by its own variable. Every other value of ``env`` and ``headers`` is sealed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from rookery.actors.protection.sensitive_values import NO_SEAL
from rookery.bus.ports import ValueSeal
from rookery.ops.mcp_client.source_values import is_secret, seal_value
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.machines.lease import AuthBindingRef
from rookery.schemas.protection.sealed_values import SealedValue
from rookery.schemas.surfaces import (
    SurfaceKind,
    SurfacePolicy,
    SurfaceSource,
    ToolPolicy,
    check_surface,
)

__all__ = ["sources_of"]

FILE_BYTES_MAX: Final = 1 << 20
SERVERS_MAX: Final = 200
TIMEOUT_MS_MAX: Final = 86_400_000
"""Of a call; what takes longer is no call to wait for."""

_STDIO: Final = ("args", "command", "cwd", "env")
_HTTP: Final = ("headers", "url")
_BOTH: Final = ("disabled", "rookery", "type")
_OWN: Final = (
    "binding",
    "binding_target",
    "connect_timeout_ms",
    "cpu_seconds",
    "memory_bytes",
    "policy",
)
_OTHERS: Final = frozenset(
    ["alwaysAllow", "autoApprove", "description", "gallery", "icon", "name", "timeout", "trust"]
)
"""Keys of other clients, which say nothing to this one."""
_KINDS: Final = {
    "stdio": SurfaceKind.MCP_STDIO,
    "http": SurfaceKind.MCP_HTTP,
    "streamable-http": SurfaceKind.MCP_HTTP,
    "streamableHttp": SurfaceKind.MCP_HTTP,
}
_URL: Final = re.compile(r"https?://[^\s/]+.*|\$\{.+", re.DOTALL)
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def sources_of(path: Path, seal: ValueSeal = NO_SEAL) -> dict[str, SurfaceSource]:
    """The sources of the servers in a file, by the names of their surfaces. ``seal`` hides what
    the file writes out; every refusal names the file and the key."""
    servers = _Section(path, (), _document(path)).section("mcpServers")
    if not servers.values:
        raise servers.refused("", "has no server")
    if len(servers.values) > SERVERS_MAX:
        raise servers.refused("", f"has {len(servers.values)} servers, {SERVERS_MAX} at most")
    sources = {}
    for name in servers.values:
        server = servers.section(name)
        try:
            check_surface(name)
        except Refused as refusal:
            raise servers.refused(name, f"is no name of a surface: {refusal.message}") from None
        if not server.get("disabled", bool, False):
            sources[name] = _source(name, server, seal)
    return sources


def _document(path: Path) -> Any:
    try:
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            raise Refused("CONFIG_INVALID", f"{path} has {size} bytes, {FILE_BYTES_MAX} at most")
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror}"
        raise Refused("CONFIG_INVALID", text) from None
    except (ValueError, RecursionError) as error:
        hint = "JSON has no comments and no trailing commas"
        raise Refused("CONFIG_INVALID", f"{path} is no JSON: {error}", hint=hint) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has {twice[:80]!r} twice")
    return found


class _Section:
    """An object of the file, and where it is."""

    def __init__(self, path: Path, keys: tuple[str, ...], values: Any) -> None:
        self._path, self._keys = path, keys
        if not isinstance(values, dict):
            raise self.refused("", "is no object")
        self.values: dict[str, Any] = values

    def refused(
        self, key: str, why: str, *, hint: str = "", code: str = "CONFIG_INVALID"
    ) -> Refused:
        place = ".".join(one[:80] for one in (*self._keys, key) if one) or "the file"
        return Refused(code, f"{self._path}: {place} {why}", hint=hint)

    def section(self, key: str) -> _Section:
        return _Section(self._path, (*self._keys, key), self.values.get(key, {}))

    def get(self, key: str, kind: type, default: Any) -> Any:
        """The value of a key, of the type."""
        found = self.values.get(key, default)
        if found is not default and type(found) is not kind:
            raise self.refused(key, f"is no {kind.__name__}")
        return found

    def require_known(self, *known: str) -> None:
        for key in self.values:
            if key not in known:
                hint = f"known: {', '.join(sorted(known))}"
                raise self.refused(key, "is no key", hint=hint, code="CONFIG_UNKNOWN_KEY")

    def texts(self, key: str) -> Mapping[str, str]:
        """An object of strings; numbers and truth values are written out."""
        found = self.section(key)
        return {name: found.text(name) for name in found.values}

    def text(self, name: str) -> str:
        match self.values[name]:
            case str(text):
                if "\0" in text or "\n" in text:
                    raise self.refused(name, "has a line end or a zero byte")
                return text
            case bool(flag):
                return str(flag).lower()
            case int(number):
                return str(number)
            case _:
                raise self.refused(name, "is no string")

    def words(self, key: str) -> tuple[str, ...]:
        found = self.values.get(key, [])
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self.refused(key, "is no list of strings")
        return tuple(found)


# --- one server -----------------------------------------------------------------------------------


def _source(name: str, server: _Section, seal: ValueSeal) -> SurfaceSource:
    kind, own = _kind(server), server.section("rookery")
    is_process = kind is SurfaceKind.MCP_STDIO
    server.require_known(*(_STDIO if is_process else _HTTP), *_BOTH, *_OTHERS)
    own.require_known(*_OWN)
    part = "env" if is_process else "headers"
    values = server.section(part)
    valid = _VARIABLE_NAME if is_process else _HEADER_NAME
    sealed: dict[str, str | SealedValue] = {}
    for key, text in server.texts(part).items():
        if not valid.fullmatch(key):
            raise values.refused(key, "is no name of a variable" if is_process else "is no header")
        try:
            field = "environment" if is_process else "headers"
            sealed[key] = seal_value(seal, name, field, key, text)
        except CodedError as error:
            hint = f"write ${{{key}}} there, and set {key} on each node"
            raise values.refused(key, error.message, hint=hint, code=error.code) from None
    binding, target = _binding(own, is_process, sealed)
    return SurfaceSource(
        kind=kind,
        command=_command(server) if is_process else (),
        folder=_folder(server) if is_process else "",
        environment=sealed if is_process else {},
        url="" if is_process else _address(server),
        headers={} if is_process else sealed,
        binding=binding,
        binding_target=target,
        memory_bytes=_number(own, "memory_bytes", 1 << 20, None),
        cpu_seconds=_number(own, "cpu_seconds", 1, None),
        connect_timeout_ms=_number(own, "connect_timeout_ms", 1, 30_000) or 30_000,
        policy=_policy(own.section("policy")),
    )


def _kind(server: _Section) -> SurfaceKind:
    has_command, has_url = "command" in server.values, "url" in server.values
    said = server.get("type", str, "")
    if said == "sse":
        raise server.refused("type", "is an older transport", hint='servers of today: "http"')
    if said and said not in _KINDS:
        raise server.refused("type", f"{said[:40]!r} is none of {', '.join(_KINDS)}")
    if has_command == has_url:
        which = "both" if has_url else "neither of"
        raise server.refused("", f"has {which} command and url", hint="one of them says which")
    kind = SurfaceKind.MCP_STDIO if has_command else SurfaceKind.MCP_HTTP
    if said and _KINDS[said] is not kind:
        raise server.refused(
            "type", f"is {said}, which has {'a url' if has_command else 'a command'}"
        )
    return kind


def _command(server: _Section) -> tuple[str, ...]:
    program = server.get("command", str, "")
    if not program or "\0" in program:
        raise server.refused("command", "is empty")
    if "/" in program and not program.startswith(("/", "${")):
        hint = "write an absolute one, or the name of a program on the nodes' PATH"
        raise server.refused(
            "command", "is a relative path, which names no file on a node", hint=hint
        )
    words = server.words("args")
    for before, word in pairwise(("", *words)):
        name, _, value = word.partition("=")
        if is_secret(name, value) or (before.startswith("-") and is_secret(before, word)):
            hint = "write ${NAME} in its place, or put it into env"
            raise server.refused("args", "has a secret, which facts would show", hint=hint)
    return (program, *words)


def _folder(server: _Section) -> str:
    folder: str = server.get("cwd", str, "")
    if folder and not folder.startswith(("/", "${")):
        raise server.refused("cwd", "is a relative path, which names no folder on a node")
    return folder


def _address(server: _Section) -> str:
    url: str = server.get("url", str, "")
    if not _URL.fullmatch(url):
        raise server.refused("url", "is no address that begins with http:// or https://")
    _, _, query = url.partition("?")
    if any(is_secret(*part.partition("=")[::2]) for part in query.split("&")):
        hint = "write ${NAME} in its place, and set NAME on each node"
        raise server.refused("url", "has a secret, which facts would show", hint=hint)
    if "@" in url.partition("//")[2].partition("/")[0]:
        hint = 'write "headers": {"Authorization": "${NAME}"}, or a binding'
        raise server.refused("url", "has a password, which facts would show", hint=hint)
    return url


def _binding(own: _Section, is_process: bool, values: Mapping[str, Any]) -> tuple[str, str]:
    binding, target = own.get("binding", str, ""), own.get("binding_target", str, "")
    if not binding:
        if target:
            raise own.refused("binding_target", "has no binding beside it")
        return "", ""
    try:
        AuthBindingRef.parse("realm", binding)
    except (ValueError, CodedError) as error:
        raise own.refused("binding", f"is none: {error}") from None
    if is_process and not _VARIABLE_NAME.fullmatch(target):
        why = "names no variable that gets the credential"
        raise own.refused("binding_target", why, hint='such as "GITHUB_TOKEN"')
    name = target or "Authorization"
    if not is_process and not _HEADER_NAME.fullmatch(name):
        raise own.refused("binding_target", "is no header")
    if name.lower() in map(str.lower, values):
        raise own.refused("binding_target", f"{name} has a value of its own, too")
    return binding, target


def _number(own: _Section, key: str, least: int, default: int | None) -> int | None:
    found: int | None = own.get(key, int, default)
    if found is not default and found is not None and found < least:
        raise own.refused(key, f"is less than {least}")
    return found


# --- policy ---------------------------------------------------------------------------------------


def _policy(policy: _Section) -> SurfacePolicy:
    policy.require_known("allow", "default", "resources", "tools")
    tools = policy.section("tools")
    return SurfacePolicy(
        default=_tool_policy(policy.section("default")),
        tools={name: _tool_policy(tools.section(name)) for name in tools.values},
        allow=policy.words("allow"),
        resources=policy.get("resources", bool, False),
    )


def _tool_policy(said: _Section) -> ToolPolicy:
    said.require_known(*ToolPolicy.__struct_fields__)
    try:
        policy = msgspec.convert(said.values, ToolPolicy)
    except msgspec.ValidationError as error:
        raise said.refused("", f"is invalid: {error}") from None
    if policy.timeout_ms is not None and not 1 <= policy.timeout_ms <= TIMEOUT_MS_MAX:
        raise said.refused("timeout_ms", f"is not from 1 to {TIMEOUT_MS_MAX}")
    return policy
