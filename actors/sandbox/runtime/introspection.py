"""The functions by which a program inspects its tools: ``list_tools``, ``describe_tool``,
``search_tools`` and ``current_policy``.

Every program of every language has these synchronous functions. The host answers them from the
tools of the run. They do not leave the sandbox, so they are neither counted nor recorded as calls,
and a snapshot does not list them as tools.

The replies are part of a run's input. A run that uses them stores all descriptions in its log, and
a replay reads them there: so a replay under a newer version gets the same replies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from rookery.actors.sandbox.contract import CallReply, Tool, ToolTable
from rookery.schemas.calls import Capability, ToolFault

__all__ = [
    "INTROSPECTION",
    "LIMITS",
    "SEARCH",
    "ToolDescriptions",
    "callable_names",
    "has_search",
]

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
SEARCH: Final = _capability(
    "search_tools", "Those of list_tools() that fit the words best.", "array", "words"
)
"""Only runs that see surfaces have it: another name in a program changes its fuel, and earlier runs
are repeated exactly."""


FOUND_MAX: Final = 20
"""Tools that one search finds."""
WORDS_CHARS_MAX: Final = 500
LIMITS: Final = "current limits"
"""The call by which a guest reads the limits of the run; it is not a valid name of a tool."""


def callable_names(tools: Mapping[str, Tool]) -> dict[str, bool]:
    """By name of each callable: whether its calls are awaited."""
    if not isinstance(tools, ToolTable):
        return _callable_names(tools)
    if tools.callable_names is None:
        tools.callable_names = _callable_names(tools)
    return tools.callable_names


def _callable_names(tools: Mapping[str, Tool]) -> dict[str, bool]:
    offered = {name: tool.awaited for name, tool in sorted(tools.items())}
    offered |= dict.fromkeys(INTROSPECTION, False)
    return offered | {SEARCH.name: False} if has_search(tools) else offered


def has_search(tools: Mapping[str, Tool]) -> bool:
    """Whether a run with these tools has ``search_tools``, and no tool of that name."""
    return SEARCH.name not in tools and any(tool.of_surface for tool in tools.values())


class ToolDescriptions(msgspec.Struct, frozen=True):
    """The encoded replies to a run's program."""

    tools: dict[str, bytes]
    """By name: the JSON of the capability, in the order of the list. Keys are in the order of the
    declaration, which binds positional arguments."""
    policy: dict[str, Any]

    @classmethod
    def of(cls, tools: Mapping[str, Tool]) -> ToolDescriptions:
        described = {
            name: _described(tool) for name, tool in sorted(tools.items()) if not tool.hidden
        }
        own = {**INTROSPECTION, SEARCH.name: SEARCH} if has_search(tools) else INTROSPECTION
        described |= {name: _encode(one) for name, one in own.items()}
        policy: dict[str, Any] = dict(_POLICY)
        visible = sorted(tool for tool in tools if not tools[tool].hidden)
        decisions = {name: tools[name].decision for name in visible if tools[name].decision}
        if decisions:  # Without them the reply is that of earlier versions.
            policy["decisions"] = decisions
        return cls(described, policy)

    @classmethod
    def shared(cls, tools: Mapping[str, Tool]) -> ToolDescriptions:
        """``of``, once for a table of tools."""
        if not isinstance(tools, ToolTable):
            return cls.of(tools)
        if tools.descriptions is None:
            tools.descriptions = cls.of(tools)
        return tools.descriptions

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.tools.values()))

    def reply_to(self, function: str, args: list[Any], kwargs: dict[str, Any]) -> CallReply:
        """The reply to ``SEARCH``, or to the function of this name in ``INTROSPECTION``."""
        if function == "describe_tool":
            return self._describe(*args, **kwargs) if _is_one(args, kwargs, "name") else _NO_NAME
        if function == "search_tools":
            return self._search(*args, **kwargs) if _is_one(args, kwargs, "words") else _NO_WORDS
        if args or kwargs:
            return _error_reply("TYPE_ERROR", f"{function}() takes no arguments")
        if function == "list_tools":
            return CallReply(value=self._all)
        return CallReply(value={**self.policy, "tools": self._all})

    def _search(self, words: str) -> CallReply:
        """The best first; by name if they fit equally."""
        wanted = sorted(set(_WORD.findall(words[:WORDS_CHARS_MAX].lower())))
        found: list[tuple[int, int, str]] = []
        for name, text in self.tools.items():
            own = name in INTROSPECTION or name == SEARCH.name
            points = [] if own else _points(name, text, wanted)
            if matched := sum(map(bool, points)):
                found.append((-matched, -sum(points), name))
        best = sorted(found)[:FOUND_MAX]
        return CallReply(value=msgspec.Raw(b"[%b]" % b",".join(self.tools[n] for *_, n in best)))

    @property
    def _all(self) -> msgspec.Raw:
        return msgspec.Raw(b"[" + b",".join(self.tools.values()) + b"]")

    def _describe(self, name: str) -> CallReply:
        described = self.tools.get(name)
        if described is None:
            return _error_reply("UNKNOWN_TOOL", f"there is no tool {name[:80]!r}")
        return CallReply(value=msgspec.Raw(described))


def _described(tool: Tool) -> bytes:
    """The capability under the tool's name in programs, which a surface may have prefixed."""
    declared = tool.capability
    if declared is None:
        declared = Capability(name=tool.name, description="", side_effect=tool.side_effect)
    text = _encode(msgspec.structs.replace(declared, name=tool.name))
    return b'%b,"pending":true}' % text[:-1] if tool.pending else text


class _Named(msgspec.Struct):
    """What a search reads of a description."""

    description: str = ""


_decode_named = msgspec.json.Decoder(_Named).decode
_WORD: Final = re.compile(r"[^\W_]+")


def _points(name: str, text: bytes, wanted: Sequence[str]) -> list[int]:
    """For each word, how well it fits: a word of the name, the beginning of one, a word of the
    description, a part of either."""
    description = _decode_named(text).description.lower()
    of_name, of_description = _WORD.findall(name.lower()), set(_WORD.findall(description))
    return [
        8 * (word in of_name)
        + 4 * any(part.startswith(word) for part in of_name)
        + 2 * (word in of_description)
        + (word in name.lower() or word in description)
        for word in wanted
    ]


def _is_one(args: list[Any], kwargs: dict[str, Any], name: str) -> bool:
    given = [*args, *kwargs.values()]
    return len(given) == 1 and isinstance(given[0], str) and set(kwargs) <= {name}


def _error_reply(code: str, message: str) -> CallReply:
    return CallReply(error=ToolFault(code, message))


_NO_NAME: Final = _error_reply("TYPE_ERROR", "describe_tool() takes one argument, the tool's name")
_NO_WORDS: Final = _error_reply("TYPE_ERROR", "search_tools() takes one argument, a text of words")
