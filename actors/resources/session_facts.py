"""What a session's facts say of its contents: the blobs they name, and its runs' results.

A program writes results, output and arguments as it likes, so a digest that merely occurs in a fact
gives no right to its blob. Only fields that the host writes name a session's blobs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import msgspec

from rookery.actors.resources.capture import BINARY, highest_privacy, read_privacy
from rookery.bus.ports import Filter, JournalReads, StoredMessage
from rookery.schemas.facts.run_progress import TURN_ENDS
from rookery.schemas.facts.sandbox import SnapshotKept
from rookery.schemas.facts.tool import Adopted, Completed, Requested
from rookery.schemas.seed.refs import PrivacyClass
from rookery.schemas.surfaces import RESOURCES

__all__ = ["KnownContent", "SessionFacts", "facts_in"]

JSON: Final = "application/json"
ANCESTORS_MAX: Final = 16
"""How many forks back a ref is looked for."""
_BLOB_FIELDS: Final = (
    "request_blob",
    "result_blob",
    "value_blob",
    "arguments_blob",
    "output_blob",
    "message_blob",
)
_ENDS: Final = frozenset(kind.__struct_config__.tag for kind in TURN_ENDS)
_SNAPSHOT: Final = SnapshotKept.__struct_config__.tag
_REQUESTED: Final = (Requested.__struct_config__.tag, Adopted.__struct_config__.tag)
_COMPLETED: Final = Completed.__struct_config__.tag

Fields = dict[str, Any]


class KnownContent(NamedTuple):
    """A blob that a session's facts name."""

    digest: str
    mime: str = BINARY
    privacy: PrivacyClass = PrivacyClass.CONTENT_REFS_ONLY
    truncated: bool = False

    def joined(self, other: KnownContent) -> KnownContent:
        """The same blob named twice: the stricter class, and the mime that says more."""
        return self._replace(
            mime=other.mime if self.mime == BINARY else self.mime,
            privacy=highest_privacy(self.privacy, other.privacy),
            truncated=self.truncated and other.truncated,
        )


class SessionFacts:
    """Reads the facts of sessions."""

    def __init__(self, journal: JournalReads) -> None:
        self._journal = journal

    async def content(self, session: str, digest: str) -> KnownContent | None:
        """The blob, if the session's facts name it, or those it was forked from."""
        until: int | None = None
        for _ in range(ANCESTORS_MAX):
            found, ancestor = None, None
            surfaces: dict[str, str] = {}
            async for sequence, fact in self.of(session):
                if until is not None and sequence > until:
                    break
                ancestor = _forked_from(fact) or ancestor
                for named in _named_contents(fact, surfaces):
                    if named.digest == digest:
                        found = named if found is None else found.joined(named)
            if found is not None or ancestor is None:
                return found
            session, until = ancestor
        return None

    async def result(self, session: str, run_id: str) -> Fields | None:
        """The last fact of an ended run."""
        async for _, fact in self.of(session, "turn"):
            if fact.get("run") == run_id and fact.get("type") in _ENDS:
                return fact
        return None

    async def snapshot(self, session: str, run_id: str) -> Fields | None:
        """The fact of the snapshot that was taken after a run."""
        ended_at = 0
        async for sequence, fact in self.of(session, "turn"):
            if fact.get("run") == run_id and fact.get("type") in _ENDS:
                ended_at = sequence
        if not ended_at:
            return None
        async for _, fact in self.of(session, "sandbox"):
            if fact.get("type") == _SNAPSHOT and fact.get("after_sequence") == ended_at:
                return fact
        return None

    async def of(
        self, session: str, family: str | None = None
    ) -> AsyncGenerator[tuple[int, Fields], None]:
        """The facts under a session's key, with the sequence of their message."""
        async with aclosing(self._journal.scan(Filter(family, session))) as pages:
            async for page in pages:
                for stored in page:
                    for fact in facts_in(stored):
                        yield stored.sequence, fact


def facts_in(stored: StoredMessage) -> list[Fields]:
    """A message's facts as written; none of a message that does not decode, or is sealed."""
    try:
        return msgspec.json.decode(stored.body, type=list[dict[str, Any]])
    except msgspec.MsgspecError:
        return []


def _named_contents(fact: Fields, surfaces: dict[str, str]) -> Iterator[KnownContent]:
    """The blobs that a fact names. ``surfaces``: of the calls so far, by operation."""
    operation, kind = str(fact.get("operation_id")), fact.get("type")
    if kind in _REQUESTED:
        surfaces[operation] = str(fact.get("surface"))
    elif kind == _COMPLETED and surfaces.get(operation) == RESOURCES:
        yield from _resolved(fact.get("value"))
    yield from (KnownContent(fact[name], JSON) for name in _BLOB_FIELDS if fact.get(name))
    yield from _of_request(fact.get("request"))
    result = fact.get("result")
    if isinstance(result, dict):
        yield from map(_artifact, result.get("artifacts") or ())


def _resolved(value: Any) -> Iterator[KnownContent]:
    """What a call of a resource tool captured. The node writes its value, no program does."""
    resolution = value.get("resolution") if isinstance(value, dict) else None
    if not isinstance(resolution, dict):
        return
    store, _, digest = str(resolution.get("content_ref")).partition(":")
    if store == "blob":
        content = resolution.get("content") or {}
        yield KnownContent(
            digest,
            mime=str(content.get("mime", BINARY)),
            privacy=read_privacy(resolution.get("privacy")),
            truncated=resolution.get("truncated") is True,
        )


def _of_request(request: Any) -> Iterator[KnownContent]:
    """What the client gave a run."""
    if not isinstance(request, dict):
        return
    if request.get("inputs_blob"):
        yield KnownContent(request["inputs_blob"], JSON)
    for file in (request.get("files") or {}).values():
        if isinstance(file, dict) and file.get("blob"):
            yield KnownContent(file["blob"])


def _artifact(ref: Mapping[str, Any]) -> KnownContent:
    return KnownContent(
        str(ref.get("content_hash")),
        mime=str(ref.get("mime", BINARY)),
        privacy=read_privacy(ref.get("privacy_class", PrivacyClass.CONTENT_REFS_ONLY)),
    )


def _forked_from(fact: Fields) -> tuple[str, int] | None:
    """The session whose memory this one began with, and where it ends there."""
    point = fact.get("forked_from")
    if isinstance(point, dict):
        return str(point["session"]), int(point["at_sequence"])
    return None
