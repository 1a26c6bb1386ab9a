"""``ResourceReader``: resolves and reads resources for sessions, in two steps.

``resolve`` captures bytes and answers a ref. ``read`` checks the ref again: whose it is, the
privacy class of its content, and its digest. Lives on the bus's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from rookery.actors.kernel.executors import QueryHandler
from rookery.actors.resources.capture import CaptureStore
from rookery.actors.resources.router import ResourceResolver, ResourceRouter
from rookery.actors.resources.session_facts import KnownContent, SessionFacts
from rookery.actors.resources.session_resolvers import (
    BlobResolver,
    JournalResolver,
    SessionResolver,
)
from rookery.bus.ports import BlobReader, Delivery, JournalReads, ValueSeal
from rookery.schemas.codec import decode_command
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.ids import check_client_session
from rookery.schemas.protection.sealed_values import SealedValue
from rookery.schemas.resources import (
    READ_BYTES_MAX,
    ListedScheme,
    ReadResource,
    ResolvedResource,
    ResolveResource,
    ResourceGrant,
    ResourceList,
    ResourcePiece,
    ResourceRef,
    ResourcesQuery,
    parse_ref,
)
from rookery.schemas.seed.agent_error import AgentError, AgentErrorKind
from rookery.schemas.seed.refs import PrivacyClass, SourceKind, SourceRef
from rookery.schemas.seed.resource import ResourceReadRequest, ResourceResolution

__all__ = ["READABLE", "ResourceReader"]

TIMEOUT_S: Final = 15.0
READABLE: Final = (PrivacyClass.PUBLIC, PrivacyClass.CONTENT_REFS_ONLY)
"""The classes whose content a program may inspect, as the contract's policy has them by default."""


class ResourceReader:
    """One per node."""

    def __init__(
        self,
        journal: JournalReads,
        blobs: BlobReader,
        store: CaptureStore,
        seal: ValueSeal,
        shared: Sequence[ResourceResolver],
    ) -> None:
        """``shared``: the resolvers that serve every session alike. ``seal`` makes the grants of
        clients, which leave no fact."""
        self._journal, self._blobs, self._store, self._seal = journal, blobs, store, seal
        self._facts, self._shared = SessionFacts(journal), tuple(shared)

    def register(self, resolver: ResourceResolver) -> None:
        """Serve another scheme to every session alike."""
        self._shared += (resolver,)

    # --- for programs -----------------------------------------------------------------------------

    async def resolve(self, session: str, uri: str, max_bytes: int) -> ResolvedResource:
        """Capture a resource; ``Refused`` or ``Failed``."""
        request = ResourceReadRequest(
            uri=uri,
            source=SourceRef.new(f"session.{session}", SourceKind.TOOL),
            policy_refs=(),
            max_bytes=max_bytes,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._router(session).resolve(request)
        except AgentError as error:
            raise _coded(error) from None
        except TimeoutError:
            text = f"{uri[:80]!r} took longer than {TIMEOUT_S:g} s"
            raise Failed("TIMEOUT_TOOL", text) from None
        return found if isinstance(found, ResolvedResource) else ResolvedResource(**asdict(found))

    async def read(
        self,
        session: str,
        uri: str,
        max_bytes: int,
        offset: int = 0,
        granted: KnownContent | None = None,
        *,
        readable: Sequence[PrivacyClass] = READABLE,
    ) -> ResourcePiece:
        """Bytes of a ref, or of a URI that is captured first. ``granted``: what a grant says of the
        ref; ``readable``: the classes that the reader may read."""
        if max_bytes > READ_BYTES_MAX:
            raise Refused(
                "RESOURCE_TOO_LARGE",
                f"{max_bytes} bytes are above {READ_BYTES_MAX} for one read",
                hint="read in pieces, each from the next_offset of the one before",
            )
        ref, resolution = parse_ref(uri), None
        if ref is None:
            resolution = await self.resolve(session, uri, offset + max_bytes)
            ref = _ref_of(resolution)
        if ref.store == "image":
            raise Refused("PERMISSION_DENIED", "memory of a session is never read as a resource")
        known = _known_of(ref.digest, resolution) or granted
        if known is None:
            known = await self._facts.content(session, ref.digest)
        if known is None:
            text = f"no fact of session {session} names blob {ref.digest[:12]}..."
            raise Refused("PERMISSION_DENIED", text, hint="resolve the resource in this session")
        _check_class(known.privacy, readable)
        return await self._piece(known, max_bytes, offset, resolution)

    async def _piece(
        self,
        known: KnownContent,
        max_bytes: int,
        offset: int,
        resolution: ResolvedResource | None,
    ) -> ResourcePiece:
        data = await self._store.get(known.digest, known.privacy)
        end = min(len(data), offset + max_bytes)
        return ResourcePiece(
            ref=f"blob:{known.digest}",
            mime=known.mime,
            offset=offset,
            size_bytes=len(data),
            data=data[offset:end],
            truncated=known.truncated or end < len(data),
            next_offset=end if offset < end < len(data) else None,
            resolution=UNSET if resolution is None else resolution,
        )

    def _router(self, session: str) -> ResourceRouter:
        router = ResourceRouter()
        for resolver in (
            *self._shared,
            BlobResolver(session, self._facts, self._store),
            JournalResolver(session, self._journal, self._store),
            SessionResolver(session, self._facts, self._blobs, self._store),
        ):
            router.register(resolver)
        return router

    # --- for clients ------------------------------------------------------------------------------

    @property
    def queries(self) -> Mapping[str, QueryHandler]:
        """The verbs of clients."""
        return {
            "resources": self.reply_list,
            "resource_resolve": self.reply_resolve,
            "resource_read": self.reply_read,
        }

    async def reply_list(self, delivery: Delivery) -> ResourceList:
        """The query ``resources``."""
        decode_command(delivery.body, ResourcesQuery, content_type=delivery.content_type)
        listed = [
            ListedScheme(
                scheme=resolver.scheme.as_str(),
                form=getattr(resolver, "form", f"{resolver.scheme}://..."),
                names=getattr(resolver, "names", ()),
            )
            for resolver in self._router("")
        ]
        return ResourceList(schemes=tuple(sorted(listed, key=lambda one: one.scheme)))

    async def reply_resolve(self, delivery: Delivery) -> ResourceGrant:
        """The query ``resource_resolve``."""
        session = check_client_session(delivery.key)
        query = decode_command(delivery.body, ResolveResource, content_type=delivery.content_type)
        resolution = await self.resolve(session, query.uri, query.max_bytes)
        return ResourceGrant(resolution=resolution, grant=self._grant(session, resolution))

    async def reply_read(self, delivery: Delivery) -> ResourcePiece:
        """The query ``resource_read``."""
        session = check_client_session(delivery.key)
        query = decode_command(delivery.body, ReadResource, content_type=delivery.content_type)
        granted = None
        if isinstance(query.grant, SealedValue) and (ref := parse_ref(query.uri)) is not None:
            granted = self._granted(session, ref.digest, query.grant)
        readable = delivery.privacy_max.and_below
        piece = await self.read(
            session, query.uri, query.max_bytes, query.offset, granted, readable=readable
        )
        if isinstance(piece.resolution, ResolvedResource):
            grant = self._grant(session, piece.resolution)
            return msgspec.structs.replace(piece, grant=grant)
        return piece

    def _grant(self, session: str, resolution: ResolvedResource) -> SealedValue | msgspec.UnsetType:
        """The right to read this capture for this session. A client's query leaves no fact that
        could name it."""
        ref = _ref_of(resolution)
        if ref.store == "image":
            return UNSET
        known = _known_of(ref.digest, resolution)
        return self._seal.seal(canonical_json(known), _seal_path(session), ref.digest)

    def _granted(self, session: str, digest: str, grant: SealedValue) -> KnownContent:
        text = self._seal.open(grant, _seal_path(session), digest)
        return msgspec.json.decode(text, type=KnownContent)


def _seal_path(session: str) -> str:
    return f"resource/{session}"


def _ref_of(resolution: ResourceResolution) -> ResourceRef:
    ref = parse_ref(resolution.content_ref.as_str())
    if ref is None:
        text = f"{resolution.uri[:80]!r} leads to a ref without stored bytes"
        raise Refused("RESOURCE_NOT_FOUND", text)
    return ref


def _known_of(digest: str, resolution: ResolvedResource | None) -> KnownContent | None:
    """What the capture of the same request says of its bytes."""
    if resolution is None:
        return None
    known = KnownContent(digest, privacy=resolution.privacy, truncated=resolution.truncated)
    return known if resolution.content is None else known._replace(mime=resolution.content.mime)


def _check_class(privacy: PrivacyClass, readable: Sequence[PrivacyClass]) -> None:
    if privacy not in readable:
        text = f"the content is {privacy}, and only {', '.join(readable)} may be read"
        raise Refused("PERMISSION_DENIED", text)


def _coded(error: AgentError) -> Refused:
    """The contract's errors at the request endpoint, in the contract's words."""
    message = error.context.message
    if error.kind is AgentErrorKind.POLICY_DENIAL:
        return Refused("RESOURCE_SCHEME_UNKNOWN", message, hint="rookery resources list")
    return Refused("RESOURCE_URI_INVALID", message)
