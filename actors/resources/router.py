"""The router of resources: it finds the resolver of a URI's scheme, as seed 002 has it.

It checks neither the budget of a request nor a policy: resolvers do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from rookery.schemas.ids import ContentRef
from rookery.schemas.seed.agent_error import AgentError, AgentErrorKind, RetryClassification
from rookery.schemas.seed.refs import PolicyRef, PrivacyClass, RetentionClass, SourceRef
from rookery.schemas.seed.resource import ResourceReadRequest, ResourceResolution, ResourceScheme

__all__ = ["ResourceResolver", "ResourceRouter", "StaticResourceResolver", "parse_scheme"]

NO_RESOLVER: Final = (
    "resource URI scheme has no registered resolver in the runtime package boundary"
)


class ResourceResolver(Protocol):
    """Resolves the URIs of one scheme. Lives on the bus's loop."""

    @property
    def scheme(self) -> ResourceScheme: ...

    async def resolve(self, request: ResourceReadRequest) -> ResourceResolution:
        """Capture at most the bytes of the request. Raises ``Refused`` or ``Failed``."""


class ResourceRouter:
    """Resolvers by their schemes."""

    def __init__(self) -> None:
        self._resolvers: dict[ResourceScheme, ResourceResolver] = {}

    def register(self, resolver: ResourceResolver) -> None:
        """Add a resolver; a later one replaces an earlier one of its scheme."""
        self._resolvers[resolver.scheme] = resolver

    def register_static(
        self,
        scheme: ResourceScheme,
        content_ref: ContentRef,
        source: SourceRef,
        policy_ref: PolicyRef,
    ) -> None:
        """Resolve every URI of a scheme to one content."""
        self.register(StaticResourceResolver(scheme, content_ref, source, policy_ref))

    async def resolve(self, request: ResourceReadRequest) -> ResourceResolution:
        """The resolver's answer; ``AgentError`` for a URI without one."""
        resolver = self._resolvers.get(parse_scheme(request.uri))
        if resolver is None:
            raise AgentError.new(
                AgentErrorKind.POLICY_DENIAL,
                RetryClassification.HOST_CONFIGURATION_NEEDED,
                NO_RESOLVER,
            )
        return await resolver.resolve(request)

    def __iter__(self) -> Iterator[ResourceResolver]:
        return iter(self._resolvers.values())


class StaticResourceResolver:
    """Answers every request with one content ref that its owner registered."""

    def __init__(
        self,
        scheme: ResourceScheme,
        content_ref: ContentRef,
        source: SourceRef,
        policy_ref: PolicyRef,
    ) -> None:
        self.scheme = scheme
        self._content_ref, self._source, self._policy_ref = content_ref, source, policy_ref

    async def resolve(self, request: ResourceReadRequest) -> ResourceResolution:
        return ResourceResolution(
            uri=request.uri,
            scheme=self.scheme,
            content_ref=self._content_ref,
            source=self._source,
            policy_refs=(self._policy_ref,),
            byte_len=0,
            truncated=False,
            parser_version="static.resource.resolver.v1",
            privacy=PrivacyClass.CONTENT_REFS_ONLY,
            retention=RetentionClass.RUN_SCOPED,
            redacted_summary="resource resolved to content ref",
        )


def parse_scheme(uri: str) -> ResourceScheme:
    """The scheme before the first ``://``. The seed panics for a character that no scheme has; here
    it is refused with the same words."""
    scheme, mark, _ = uri.partition("://")
    if not mark:
        raise AgentError.contract_violation("resource URI must include a scheme")
    if not scheme:
        raise AgentError.contract_violation("resource URI scheme must not be empty")
    try:
        return ResourceScheme(scheme)
    except ValueError as error:
        raise AgentError.contract_violation(str(error)) from None
