"""Resolvers of a session's own contents: ``blob``, ``journal`` and ``session``.

Each is made for one session and refuses every other: no policy of this version grants the memory of
another session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

import msgspec

from rookery.actors.resources.capture import (
    CapturedBytes,
    CaptureStore,
    highest_privacy,
    read_privacy,
)
from rookery.actors.resources.session_facts import SessionFacts, facts_in
from rookery.bus.ports import BlobReader, Filter, JournalReads
from rookery.schemas.errors import Refused
from rookery.schemas.ids import ContentRef as ContentRefId
from rookery.schemas.ids import check_client_session
from rookery.schemas.resources import ResolvedResource
from rookery.schemas.seed.content import ContentScope
from rookery.schemas.seed.refs import PrivacyClass, RetentionClass, SourceRef, TrustClass
from rookery.schemas.seed.resource import ResourceReadRequest, ResourceScheme

__all__ = ["FACTS_MAX", "BlobResolver", "JournalResolver", "SessionResolver", "uri_rest"]

FACTS_MAX: Final = 1_000
"""Of one journal resource."""
_LINES: Final = "application/jsonl"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_RANGE: Final = re.compile(r"([^/]+)/([0-9]{1,18})(?:-([0-9]{1,18}))?")
_RUN_PART: Final = re.compile(r"([^/]+)/runs/([^/]+)/(result|snapshot)")


def uri_rest(request: ResourceReadRequest) -> str:
    """What comes after ``scheme://``."""
    return request.uri.partition("://")[2]


def _invalid(request: ResourceReadRequest, form: str) -> Refused:
    return Refused("RESOURCE_URI_INVALID", f"{request.uri[:80]!r} is not {form}")


def _require_own(session: str, named: str) -> None:
    if check_client_session(named) != session:
        raise Refused("PERMISSION_DENIED", f"session {session} may not read session {named}")


class BlobResolver:
    """``blob://<digest>``: a blob that the session's facts name. A digest is no permission."""

    scheme = ResourceScheme("blob")
    form = "blob://<digest>"

    def __init__(self, session: str, facts: SessionFacts, store: CaptureStore) -> None:
        self._session, self._facts, self._store = session, facts, store

    async def resolve(self, request: ResourceReadRequest) -> ResolvedResource:
        budget, digest = self._store.budget(request), uri_rest(request)
        if not _DIGEST.fullmatch(digest):
            raise _invalid(request, self.form)
        known = await self._facts.content(self._session, digest)
        if known is None:
            text = f"no fact of session {self._session} names blob {digest[:12]}..."
            raise Refused("PERMISSION_DENIED", text)
        data = await self._store.get(digest, known.privacy)
        found = CapturedBytes(
            data[:budget],
            ContentScope.SESSION,
            TrustClass.UNTRUSTED,
            truncated=known.truncated or len(data) > budget,
            mime=known.mime,
            privacy=known.privacy,
        )
        return await self._store.store(request, self.scheme, found)


class JournalResolver:
    """``journal://<session>/<from>[-<to>]``: facts, one a line, of these sequences."""

    scheme = ResourceScheme("journal")
    form = "journal://<session>/<from>[-<to>]"

    def __init__(self, session: str, journal: JournalReads, store: CaptureStore) -> None:
        self._session, self._journal, self._store = session, journal, store

    async def resolve(self, request: ResourceReadRequest) -> ResolvedResource:
        budget = self._store.budget(request)
        matched = _RANGE.fullmatch(uri_rest(request))
        if matched is None:
            raise _invalid(request, self.form)
        _require_own(self._session, matched[1])
        first, last = int(matched[2]), int(matched[3] or matched[2])
        if not 0 < first <= last:
            raise _invalid(request, f"{self.form}, of sequences from 1 in order")
        return await self._store.store(request, self.scheme, await self._lines(first, last, budget))

    async def _lines(self, first: int, last: int, budget: int) -> CapturedBytes:
        """Whole lines, up to the budget or ``FACTS_MAX``."""
        text, privacy, count, truncated = bytearray(), PrivacyClass.PUBLIC, 0, False
        async with aclosing(self._journal.scan(Filter(key=self._session), first - 1)) as pages:
            async for page in pages:
                for stored in page:
                    if stored.sequence > last or truncated:
                        break
                    for fact in facts_in(stored):
                        line = msgspec.json.encode({"seq": stored.sequence, **fact}) + b"\n"
                        truncated = count == FACTS_MAX or len(text) + len(line) > budget
                        if truncated:
                            break
                        text += line
                        count += 1
                        privacy = highest_privacy(privacy, _privacy_of(fact))
                if truncated or page[-1].sequence >= last:
                    break
        return CapturedBytes(
            bytes(text),
            ContentScope.SESSION,
            TrustClass.SDK_GENERATED,
            truncated=truncated,
            mime=_LINES,
            privacy=privacy,
        )


class SessionResolver:
    """``session://<id>/runs/<run>/result`` and ``.../snapshot``; of the second only the ref."""

    scheme = ResourceScheme("session")
    form = "session://<id>/runs/<run>/result or .../snapshot"

    def __init__(
        self, session: str, facts: SessionFacts, blobs: BlobReader, store: CaptureStore
    ) -> None:
        self._session, self._facts, self._blobs, self._store = session, facts, blobs, store

    async def resolve(self, request: ResourceReadRequest) -> ResolvedResource:
        matched = _RUN_PART.fullmatch(uri_rest(request))
        if matched is None:
            raise _invalid(request, self.form)
        _require_own(self._session, matched[1])
        if matched[3] == "snapshot":
            return await self._snapshot(request, matched[2])
        return await self._result(request, matched[2])

    async def _result(self, request: ResourceReadRequest, run_id: str) -> ResolvedResource:
        budget = self._store.budget(request)
        end = await self._facts.result(self._session, run_id)
        if end is None:
            raise self._not_found(f"run {run_id[:80]!r} that has ended")
        if blob := end.get("result_blob"):
            data = await self._blobs.get(blob)
        else:
            data = msgspec.json.encode(end.get("result"))
        found = CapturedBytes(
            data[:budget],
            ContentScope.RUN,
            TrustClass.UNTRUSTED,
            truncated=len(data) > budget,
            mime="application/json",
            privacy=_privacy_of(end),
        )
        return await self._store.store(request, self.scheme, found)

    async def _snapshot(self, request: ResourceReadRequest, run_id: str) -> ResolvedResource:
        taken = await self._facts.snapshot(self._session, run_id)
        if taken is None:
            raise self._not_found(f"snapshot that was taken after a run {run_id[:80]!r}")
        return ResolvedResource(
            uri=request.uri,
            scheme=self.scheme,
            content_ref=ContentRefId(f"image:{taken['blob']}"),
            source=SourceRef.new("resource.session"),
            policy_refs=request.policy_refs,
            byte_len=taken["size_bytes"],
            truncated=False,
            parser_version="session.resource.resolver.v1",
            privacy=PrivacyClass.SECRET,
            retention=RetentionClass.DURABLE,
            redacted_summary="memory of a session, which is never read as a resource",
        )

    def _not_found(self, what: str) -> Refused:
        return Refused("RESOURCE_NOT_FOUND", f"session {self._session} has no {what}")


def _privacy_of(fact: Mapping[str, Any]) -> PrivacyClass:
    """The class of a fact as written; without one it has the default."""
    return read_privacy(fact.get("privacy", PrivacyClass.INTERNAL))
