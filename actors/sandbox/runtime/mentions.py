"""The names of tools that a guest has: of surfaces, only those that a program of its session has
mentioned.

A realm may have thousands of tools, and to give a guest their names costs more than a short
program. So a name is bound when a source mentions it, in code or in a text, and stays bound: a
function of an earlier run may use it. A source that can compute names, such as one with ``eval``,
gets all of them. The rule is a function of the sources alone, so every replay binds the same names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from unicodedata import normalize

from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.contract import Tool, ToolTable
from rookery.actors.sandbox.runtime.introspection import callable_names
from rookery.schemas.run import Language

__all__ = ["Mentions", "is_by_mention", "names_for", "restored", "stored"]

WORDS_MAX: Final = 2_000
"""Different words of a session; with more of them its programs get all names."""
ALL: Final = "*"
"""Stored in place of the words if programs get all names."""
_WORD: Final = re.compile(r"[^\W\d]\w*")
_COMPUTES: Final = {
    Language.PYTHON: re.compile(r"\b(?:eval|exec|compile|globals|locals|vars|__dict__)\b|builtins"),
    Language.TYPESCRIPT: re.compile(
        r"\b(?:eval|Function|globalThis|Reflect)\b|[.\[]\s*[\"'`]?constructor\b|\\u"
        r"|\bthis\b(?!\s*\??\.\s*[\w$#])"
    ),
}
"""How a program reaches a name that its source does not mention."""


class Mentions(NamedTuple):
    """What the programs of a session have mentioned so far."""

    words: frozenset[str] = frozenset()
    everything: bool = False
    """Whether its programs get all names."""

    def after(self, source: str, language: Language) -> Mentions:
        """With what this source mentions."""
        if self.everything:
            return self
        if not source.isascii():
            source = normalize("NFKC", source)  # As the parser of Python does with names.
        if _COMPUTES[language].search(source):
            return _EVERYTHING
        words = self.words.union(_WORD.findall(source))
        if len(words) > WORDS_MAX:
            return _EVERYTHING
        return self if len(words) == len(self.words) else Mentions(words)


_EVERYTHING: Final = Mentions(everything=True)


def stored(mentions: Mentions | None) -> tuple[str, ...] | UnsetType:
    """As a snapshot has them, sorted: equal sessions have equal snapshots."""
    if mentions is None:
        return UNSET
    return (ALL,) if mentions.everything else tuple(sorted(mentions.words))


def restored(words: tuple[str, ...] | UnsetType) -> Mentions | None:
    """The inverse of ``stored``."""
    if words is UNSET:
        return None
    return _EVERYTHING if ALL in words else Mentions(frozenset(words))


def is_by_mention(tools: Mapping[str, Tool]) -> bool:
    """Whether a run with these tools gets only the names that are mentioned."""
    return bool(_bound_by_mention(tools))


def names_for(tools: Mapping[str, Tool], mentions: Mentions) -> dict[str, bool]:
    """By the names that the guest has for a run: whether calls are awaited."""
    if mentions.everything or not (by_mention := _bound_by_mention(tools)):
        return callable_names(tools)
    mentioned = {name: tools[name].awaited for name in sorted(by_mention & mentions.words)}
    return {**_always_bound(tools, by_mention), **mentioned}


def _bound_by_mention(tools: Mapping[str, Tool]) -> frozenset[str]:
    """The names that need a mention."""
    known = tools.by_mention if isinstance(tools, ToolTable) else None
    if known is None:
        known = frozenset(name for name, tool in tools.items() if tool.by_mention is True)
        if isinstance(tools, ToolTable):
            tools.by_mention = known
    return known


def _always_bound(tools: Mapping[str, Tool], by_mention: frozenset[str]) -> dict[str, bool]:
    """The other names."""
    known = tools.always_bound if isinstance(tools, ToolTable) else None
    if known is None:
        offered = callable_names(tools).items()
        known = {name: awaited for name, awaited in offered if name not in by_mention}
        if isinstance(tools, ToolTable):
            tools.always_bound = known
    return known
