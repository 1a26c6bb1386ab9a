"""The router says what seed 002 says: each of its texts, kinds and constants."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from rookery.actors.resources.router import ResourceRouter, StaticResourceResolver, parse_scheme
from rookery.schemas.ids import ContentRef
from rookery.schemas.seed.agent_error import AgentError, AgentErrorKind, RetryClassification
from rookery.schemas.seed.refs import PolicyRef, PrivacyClass, RetentionClass, SourceRef
from rookery.schemas.seed.resource import ResourceReadRequest, ResourceResolution, ResourceScheme

OWNER, POLICY = SourceRef.new("owner"), PolicyRef.new("policy.docs")
NO_RESOLVER = "resource URI scheme has no registered resolver in the runtime package boundary"


def request(uri: str, max_bytes: int = 10) -> ResourceReadRequest:
    caller = SourceRef.new("caller")
    return ResourceReadRequest(uri=uri, source=caller, policy_refs=(), max_bytes=max_bytes)


def resolve(router: ResourceRouter, uri: str, max_bytes: int = 10) -> ResourceResolution:
    return asyncio.run(router.resolve(request(uri, max_bytes)))


def error_of(uri: str, router: ResourceRouter | None = None) -> AgentError:
    with pytest.raises(AgentError) as caught:
        resolve(router or ResourceRouter(), uri)
    return caught.value


def with_static(*schemes: str) -> ResourceRouter:
    router = ResourceRouter()
    for scheme in schemes:
        ref = ContentRef(f"content.{scheme}")
        router.register_static(ResourceScheme(scheme), ref, OWNER, POLICY)
    return router


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("docs", "resource URI must include a scheme"),
        ("", "resource URI must include a scheme"),
        ("docs:/x", "resource URI must include a scheme"),
        ("://x", "resource URI scheme must not be empty"),
        ("do cs://x", "ResourceScheme must use URI scheme characters"),
        ("do_cs://x", "ResourceScheme must use URI scheme characters"),
        ("d\u00f6cs://x", "ResourceScheme must use URI scheme characters"),
        ("docs\n://x", "ResourceScheme must use URI scheme characters"),
        ("a/b://x", "ResourceScheme must use URI scheme characters"),
    ],
)
def test_a_malformed_uri_violates_the_contract_in_the_seeds_words(uri: str, text: str):
    error = error_of(uri, with_static("docs"))
    assert error == AgentError.contract_violation(text)
    assert error.kind is AgentErrorKind.INVALID_STATE_TRANSITION
    assert error.retry is RetryClassification.REPAIR_NEEDED
    assert error.context.message == text


def test_a_scheme_without_a_resolver_is_denied_by_policy_in_the_seeds_words():
    for router, uri in ((ResourceRouter(), "docs://x"), (with_static("docs"), "Docs://x")):
        error = error_of(uri, router)
        assert error.kind is AgentErrorKind.POLICY_DENIAL
        assert error.retry is RetryClassification.HOST_CONFIGURATION_NEEDED
        assert error.context.message == NO_RESOLVER


def test_a_static_resolver_answers_with_the_seeds_constants():
    resolution = resolve(with_static("docs"), "docs://a/b?c#d", max_bytes=0)
    assert resolution == ResourceResolution(
        uri="docs://a/b?c#d",
        scheme=ResourceScheme("docs"),
        content_ref=ContentRef("content.docs"),
        source=OWNER,
        policy_refs=(POLICY,),
        byte_len=0,
        truncated=False,
        parser_version="static.resource.resolver.v1",
        privacy=PrivacyClass.CONTENT_REFS_ONLY,
        retention=RetentionClass.RUN_SCOPED,
        redacted_summary="resource resolved to content ref",
    )


def test_the_scheme_ends_at_the_first_mark_and_may_have_every_uri_character():
    assert parse_scheme("a+B-1.z://x://y") == ResourceScheme("a+B-1.z")
    assert resolve(with_static("a", "a+b"), "a+b://a://x").content_ref == ContentRef("content.a+b")


def test_a_later_registration_replaces_an_earlier_one_of_its_scheme():
    router = with_static("docs", "other")
    later = StaticResourceResolver(ResourceScheme("docs"), ContentRef("later"), OWNER, POLICY)
    router.register(later)
    assert resolve(router, "docs://x").content_ref == ContentRef("later")
    assert resolve(router, "other://x").content_ref == ContentRef("content.other")
    assert next(iter(router)) is later
    assert len([*router]) == 2


class Unlimited(NamedTuple):
    """A resolver of its own mind."""

    scheme: ResourceScheme
    seen: list[ResourceReadRequest]

    async def resolve(self, request: ResourceReadRequest) -> ResourceResolution:
        self.seen.append(request)
        static = StaticResourceResolver(self.scheme, ContentRef("own"), OWNER, POLICY)
        return await static.resolve(request)


def test_the_router_leaves_budgets_and_policies_to_the_resolvers():
    router, resolver = ResourceRouter(), Unlimited(ResourceScheme("own"), [])
    router.register(resolver)
    for max_bytes in (0, 1 << 60):
        assert resolve(router, "own://x", max_bytes).content_ref == ContentRef("own")
    assert resolver.seen == [request("own://x", 0), request("own://x", 1 << 60)]
