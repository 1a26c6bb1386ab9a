"""The functions by which a program inspects its tools: ``list_tools``, ``describe_tool`` and
``current_policy``.

Every program of every language has these synchronous functions. The host answers them from the
tools of the run. They do not leave the sandbox, so they are neither counted nor recorded as calls,
and a snapshot does not list them as tools.

The replies are part of a run's input. A run that uses them stores all descriptions in its log, and
a replay reads them there: so a replay under a newer version gets the same replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rookery.actors.sandbox.contract import CallReply, Tool
from rookery.schemas.calls import Capability, ToolFault

__all__ = ["INTROSPECTION", "LIMITS", "ToolDescriptions", "callable_names"]

_encode = msgspec.json.encode
_POLICY: Final = {
    "default_permissions": "none",
    "filesystem": "capability_only",
    "network": "capability_only",
    "subprocess": "denied",
}


def _capability(name: str, description: str, answer: str, *texts: str) -> Capability:
    """``texts`` are the names of the arguments, all of type string."""
    arguments = {
        "type": "object",
        "properties": {text: {"type": "string"} for text in texts},
        "required": list(texts),
        "additionalProperties": False,
    }
    output = {"type": answer}
    return Capability(
        name=name, description=description, input_schema=arguments, output_schema=output
    )


INTROSPECTION: Final[Mapping[str, Capability]] = {
    capability.name: capability
    for capability in (
        _capability("list_tools", "All that can be called, each with its schemas.", "array"),
        _capability("describe_tool", "One of list_tools(), by name.", "object", "name"),
        _capability("current_policy", "What the sandbox allows beside its tools.", "object"),
    )
}
"""In the order of the list, after the tools of the host."""


LIMITS: Final = "current limits"
"""The call by which a guest reads the limits of the run; it is not a valid name of a tool."""


def callable_names(tools: Mapping[str, Tool]) -> dict[str, bool]:
    """By name of each callable: whether its calls are awaited."""
    offered = {name: tool.awaited for name, tool in sorted(tools.items())}
    return offered | dict.fromkeys(INTROSPECTION, False)


class ToolDescriptions(msgspec.Struct, frozen=True):
    """The encoded replies to a run's program."""

    tools: dict[str, bytes]
    """By name: the JSON of the capability, in the order of the list. Keys are in the order of the
    declaration, which binds positional arguments."""
    policy: dict[str, str]

    @classmethod
    def of(cls, tools: Mapping[str, Tool]) -> ToolDescriptions:
        described = {
            name: _to_capability(tool) for name, tool in sorted(tools.items()) if not tool.hidden
        }
        described |= INTROSPECTION
        return cls({name: _encode(one) for name, one in described.items()}, dict(_POLICY))

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.tools.values()))

    def reply_to(self, function: str, args: list[Any], kwargs: dict[str, Any]) -> CallReply:
        """The reply to the function of this name in ``INTROSPECTION``."""
        if function == "describe_tool":
            return self._describe(*args, **kwargs) if _names_one(args, kwargs) else _WRONG_ARGUMENTS
        if args or kwargs:
            return _error_reply("TYPE_ERROR", f"{function}() takes no arguments")
        if function == "list_tools":
            return CallReply(value=self._all)
        return CallReply(value={**self.policy, "tools": self._all})

    @property
    def _all(self) -> msgspec.Raw:
        return msgspec.Raw(b"[" + b",".join(self.tools.values()) + b"]")

    def _describe(self, name: str) -> CallReply:
        described = self.tools.get(name)
        if described is None:
            return _error_reply("UNKNOWN_TOOL", f"there is no tool {name[:80]!r}")
        return CallReply(value=msgspec.Raw(described))


def _to_capability(tool: Tool) -> Capability:
    """The capability under the tool's name in programs, which a surface may have prefixed."""
    declared = tool.capability
    if declared is None:
        return Capability(name=tool.name, description="", side_effect=tool.side_effect)
    return msgspec.structs.replace(declared, name=tool.name)


def _names_one(args: list[Any], kwargs: dict[str, Any]) -> bool:
    names = [*args, *kwargs.values()]
    return len(names) == 1 and isinstance(names[0], str) and set(kwargs) <= {"name"}


def _error_reply(code: str, message: str) -> CallReply:
    return CallReply(error=ToolFault(code, message))


_WRONG_ARGUMENTS: Final = _error_reply(
    "TYPE_ERROR", "describe_tool() takes one argument, the tool's name"
)
