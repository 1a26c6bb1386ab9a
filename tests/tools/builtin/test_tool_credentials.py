"""The credential of a binding, as functions and HTTP tools get it; and what is scrubbed of it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from rookery.actors.tools import ToolCallContext, ToolCredential, ToolError, ToolRegistry, tool
from rookery.actors.tools.catalogue import CatalogueTool
from rookery.actors.tools.functions.local_host import LocalToolHost
from rookery.actors.tools.web import Allowed, HttpCredential, http_tools
from rookery.actors.tools.web.http import HttpTransport
from rookery.schemas.calls import CallOutcome
from rookery.schemas.errors import Refused
from rookery.schemas.run import SideEffect
from rookery.schemas.surfaces import LOCAL
from tests.tools.builtin.http_programs import LOOPBACK, addresses_of
from tests.tools.builtin.web_server import CERTIFICATE, Web, answer, redirect

VALUE = "canary-7b1f5c2e9a4d8036"


@tool(binding="github")
def whole(credential: ToolCredential) -> dict[str, Any]:
    """Every way to get it."""
    return {
        "header": credential.header(),
        "other": credential.header("X-Key"),
        "query": credential.query("key"),
        "environment": credential.environment("TOKEN"),
        "shown": f"{credential}{credential!r}",
    }


@tool(binding="github:ada")
async def halves(credential: ToolCredential, *, at: int) -> list[str]:
    return [credential.value[:at], credential.value.encode().hex(), "end"]


@tool(binding="github", quick=True)
def code_error(ctx: ToolCallContext) -> str:
    assert ctx.credential is not None
    raise ToolError("TOOL_ERROR", f"refused: {ctx.credential.value}")


@tool(binding="github")
def other_error(credential: ToolCredential) -> str:
    raise ValueError(f"refused: {credential.value}")


REGISTRY = ToolRegistry.of(whole, halves, code_error, other_error)


def outcome_of(name: str, credential: ToolCredential | None = None, **kwargs: Any) -> CallOutcome:
    async def scenario() -> CallOutcome:
        context = ToolCallContext(name, [], kwargs, call_id="op", credential=credential)
        return await host.call(context, 10_000)

    host = LocalToolHost(REGISTRY)
    try:
        return asyncio.run(scenario())
    finally:
        host.close(1)


def test_a_function_gets_the_credential_and_its_result_is_scrubbed():
    credential = ToolCredential(VALUE)
    assert outcome_of("whole", credential).value == {
        "header": {"Authorization": "Bearer [credential]"},
        "other": {"X-Key": "[credential]"},
        "query": {"key": "[credential]"},
        "environment": {"TOKEN": "[credential]"},
        "shown": "<ToolCredential><ToolCredential>",
    }
    assert outcome_of("halves", credential, at=16).value == ["[credential]", "[credential]", "end"]
    assert ToolCredential(VALUE, scheme="").header() == {"Authorization": VALUE}


def test_errors_and_logs_are_scrubbed_too(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    credential = ToolCredential(VALUE)
    coded = outcome_of("code_error", credential).error
    assert (coded.code, coded.message) == ("TOOL_ERROR", "refused: [credential]")
    other = outcome_of("other_error", credential).error
    assert "see call op in the log" in other.message
    logged = str([vars(record) for record in caplog.records])
    assert "ValueError, whose text may be sensitive" in logged
    assert VALUE not in logged


def test_the_credential_is_no_part_of_a_tools_schema_and_its_calls_are_recorded_first():
    capability = whole.__rookery_tool__.capability
    assert capability.binding == "github"
    assert capability.input_schema["properties"] == {}
    assert halves.__rookery_tool__.capability.binding == "github:ada"
    assert CatalogueTool.of(LOCAL, capability, awaited=False).capability.record != "after"


def test_a_binding_that_no_parameter_gets_or_that_is_none_is_refused():
    def plain(x: int) -> int:
        return x

    def needs(credential: ToolCredential) -> int:
        return 1

    def twice(one: ToolCredential, two: ToolCredential) -> int:
        return 2

    for function, options, words in (
        (plain, {"binding": "github"}, "no parameter gets"),
        (needs, {}, "and no binding"),
        (twice, {"binding": "github"}, "a second credential"),
        (needs, {"binding": ""}, "binding of needs"),
        (needs, {"binding": "a:b:c"}, "binding of needs"),
        (needs, {"binding": "a b"}, "binding of needs"),
        (needs, {"binding": 7}, "binding of needs"),
    ):
        with pytest.raises(Refused, match=words) as refused:
            tool(**options)(function)
        assert refused.value.code == "INVALID_ARGUMENT"


# --- HTTP -----------------------------------------------------------------------------------------


def call_http(
    entries: list[Allowed], how: HttpCredential, name: str, *args: Any, **kwargs: Any
) -> tuple[Any, ToolCredential]:
    """What the tool answers, and its credential afterwards; the host scrubs the answer."""
    tls = HttpTransport(resolve=addresses_of)
    tls.tls.load_verify_locations(CERTIFICATE)
    host = LocalToolHost(ToolRegistry.of(*http_tools(entries, transport=tls, credential=how)))
    credential = ToolCredential(VALUE)

    async def scenario() -> CallOutcome:
        ctx = ToolCallContext(name, list(args), kwargs, call_id="op", credential=credential)
        return await host.call(ctx, 10_000)

    try:
        outcome = asyncio.run(scenario())
    finally:
        host.close(1)
    return outcome, credential


def allowed(web: Web, path: str = "") -> list[Allowed]:
    methods = ("GET", "POST")
    return [Allowed(f"https://allowed.test:{web.port}{path}", methods, LOOPBACK)]


def test_requests_have_the_credential_in_a_header_or_the_query(secure_web: Web):
    secure_web.pages["/a"] = answer(b"ok")
    secure_web.pages["/a?x=1&key=canary-7b1f5c2e9a4d8036"] = answer(b"ok")
    secure_web.pages["/a?key=canary-7b1f5c2e9a4d8036"] = answer(b"ok")
    url = allowed(secure_web)[0].url
    places = (
        (HttpCredential("git-hub"), "authorization", f"Bearer {VALUE}"),
        (HttpCredential("git-hub", header="X-Api-Key"), "x-api-key", VALUE),
    )
    for how, header, value in places:
        call_http(allowed(secure_web), how, "git_hub_fetch_text", f"{url}/a")
        assert {k.lower(): v for k, v in secure_web.asked[-1].headers.items()}[header] == value
    how = HttpCredential("git-hub", query="key")
    for query, sent in (("", f"?key={VALUE}"), ("?x=1", f"?x=1&key={VALUE}")):
        outcome, _ = call_http(allowed(secure_web), how, "git_hub_http_get", f"{url}/a{query}")
        assert secure_web.asked[-1].line == f"GET /a{sent} HTTP/1.1"
        assert outcome.value["url"] == f"{url}/a{query}"
    call_http(
        allowed(secure_web), HttpCredential("git-hub"), "git_hub_http_send", "POST", f"{url}/a"
    )
    assert secure_web.asked[-1].headers["Authorization"] == f"Bearer {VALUE}"


def test_a_program_gets_no_credential_that_a_server_repeats(secure_web: Web):
    echo = f'{{"Authorization": "Bearer {VALUE}"}}'.encode()
    secure_web.pages["/echo"] = answer(echo, f"X-Echo: {VALUE}")
    secure_web.pages["/bytes"] = answer(b"\xff" + echo, "Content-Type: image/png")
    secure_web.pages["/away"] = redirect(f"https://other.test/{VALUE}")
    url, how = allowed(secure_web)[0].url, HttpCredential("api")
    for name, path in (
        ("api_http_get", "/echo"),
        ("api_fetch_text", "/echo"),
        ("api_fetch_json", "/echo"),
        ("api_http_get", "/bytes"),
        ("api_fetch_text", "/away"),
        ("api_fetch_text", "/absent"),
    ):
        outcome, _ = call_http(allowed(secure_web), how, name, url + path)
        assert VALUE not in str(outcome)
        assert VALUE[:16] not in str(outcome)


def test_only_a_401_rejects_the_credential(secure_web: Web):
    for status in ("200 OK", "401 Unauthorized", "403 Forbidden"):
        secure_web.pages["/a"] = answer(b"", status=status)
        url = allowed(secure_web)[0].url
        how = HttpCredential("api")
        _, credential = call_http(allowed(secure_web), how, "api_http_get", f"{url}/a")
        assert credential.is_rejected is status.startswith("401")


def test_no_credential_leaves_the_allowlist_of_its_binding(secure_web: Web):
    secure_web.pages["/in/a"] = redirect("/out")
    secure_web.pages["/out"] = answer(b"out")
    entries = allowed(secure_web, "/in")
    outcome, _ = call_http(entries, HttpCredential("api"), "api_fetch_text", f"{entries[0].url}/a")
    assert outcome.error.code == "PERMISSION_DENIED"
    assert [one.line.split()[1] for one in secure_web.asked] == ["/in/a"]


def test_a_credential_in_clear_or_in_a_wrong_place_is_refused():
    networks = (*LOOPBACK, "10.0.0.0/8")
    for url in ("http://example.com", "http://localhost", "http://10.0.0.1"):
        with pytest.raises(Refused, match="not encrypted"):
            http_tools([Allowed(url, networks=networks)], credential=HttpCredential("api"))
    here = Allowed("http://127.0.0.1:1", networks=networks)
    assert http_tools([here], credential=HttpCredential("api"))
    for place in (
        {"header": "Host"},
        {"header": "a b"},
        {"header": "Content-Type"},
        {"header": ""},
        {"query": "a&b"},
        {"binding": "a:b:c"},
    ):
        with pytest.raises(Refused):
            HttpCredential(**{"binding": "api", **place})


def test_tools_without_a_binding_have_the_names_and_schemas_they_had():
    names = {one.capability.name: one.capability for one in http_tools([Allowed("https://a.b")])}
    assert sorted(names) == ["fetch_json", "fetch_text", "http_get"]
    assert set(names["http_get"].input_schema["properties"]) == {"url", "headers"}
    assert all(one.side_effect is SideEffect.NETWORK for one in names.values())
