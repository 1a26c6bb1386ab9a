"""What providers make of an authorization server that works, and of one that does not.

The server is real and in its own process: ``oidc-provider`` of npm. A spoiled answer is one that
the server made, and that was then delayed, cut off or replaced on its way.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from rookery.actors.leases import Binding, Provider
from rookery.actors.leases.provider import (
    LeaseCredential,
    Login,
    LoginNeeded,
    Outcome,
    Renewed,
    RetryLater,
)
from rookery.actors.leases.providers import (
    SecretReader,
    callback_code,
    create_providers,
    is_login_provider,
)
from rookery.schemas.machines.lease import LeaseKey
from tests.leases.authorization_server import (
    CLIENT_SECRET,
    AuthorizationServer,
    Browser,
    authorization_server,
)

NOW = 1_000_000.0
TOKEN = {"access_token": "canary-token", "token_type": "bearer", "expires_in": 60}
CALLBACK = "http://127.0.0.1:7777/callback"
SHORT_S = 0.5


@pytest.fixture(scope="module")
def server() -> Iterator[AuthorizationServer]:
    with authorization_server(ttl=500) as running:
        yield running


async def no_stored_secret(name: str) -> bytes | None:
    return None


@functools.cache
def providers() -> Any:
    """Made once: to load the trusted certificates takes longer than a request."""
    return create_providers(
        SecretReader(no_stored_secret, {"CLIENT_SECRET": CLIENT_SECRET}), os.urandom
    )


def binding_of(settings: dict[str, Any]) -> Binding:
    key = LeaseKey("default", "somewhere")
    return Binding(key=key, provider=settings["provider"], settings=settings)


def refresh(
    settings: dict[str, Any], credential: LeaseCredential | None = None
) -> Awaitable[Outcome]:
    provider: Provider = providers()[settings["provider"]]
    return provider.refresh(binding_of(settings), credential, now=NOW)


def renewed(outcome: Outcome) -> LeaseCredential:
    assert isinstance(outcome, Renewed), outcome
    return outcome.credential


async def log_in_by_browser(settings: dict[str, Any]) -> LeaseCredential:
    provider, binding = providers()["authorization_code"], binding_of(settings)
    login = await provider.begin_login(binding, CALLBACK, now=NOW)
    address = await asyncio.to_thread(Browser().log_in, login.prompt.url)
    assert address.startswith(CALLBACK)
    code = callback_code(urlsplit(address).query, login.secret)
    assert isinstance(code, str)
    return renewed(await provider.complete_login(binding, login.secret, code, now=NOW))


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


# --- a server that works --------------------------------------------------------------------------


@pytest.mark.parametrize(("client", "auth"), [("machine", "basic"), ("poster", "post")])
def test_a_client_gets_a_credential_of_its_own(server: AuthorizationServer, client, auth):
    async def scenario() -> None:
        settings = server.settings("client_credentials", client, client_auth=auth)
        first, second = renewed(await refresh(settings)), renewed(await refresh(settings))
        assert first.value != second.value
        assert (first.scheme, first.expires_at) == ("Bearer", NOW + 500)
        assert first.extra == {"scope": "api"}

    run(scenario)


def test_a_login_by_browser_leads_to_refresh_tokens_that_are_used_once(server: AuthorizationServer):
    async def scenario() -> None:
        settings = server.settings("authorization_code")
        before = server.counts().get("refresh_token", 0)
        first = await log_in_by_browser(settings)
        second = renewed(await refresh(settings, first))
        assert second.refresh_token not in ("", first.refresh_token)
        assert second.value != first.value
        reused = await refresh(settings, first)
        assert isinstance(reused, LoginNeeded)
        assert "invalid_grant" in reused.reason
        assert server.counts()["refresh_token"] == before + 2

    run(scenario)


def test_a_code_without_its_verifier_or_for_another_address_is_worth_nothing(
    server: AuthorizationServer,
):
    async def scenario() -> None:
        settings = server.settings("authorization_code")
        provider, binding = providers()["authorization_code"], binding_of(settings)
        mine = await provider.begin_login(binding, CALLBACK, now=NOW)
        other = await provider.begin_login(binding, CALLBACK, now=NOW)
        address = await asyncio.to_thread(Browser().log_in, mine.prompt.url)
        assert callback_code(urlsplit(address).query, other.secret) is None
        code = callback_code(urlsplit(address).query, mine.secret)
        stolen = await provider.complete_login(binding, other.secret, code, now=NOW)
        assert isinstance(stolen, LoginNeeded)
        late = await provider.complete_login(binding, mine.secret, code, now=NOW + 601)
        assert late == LoginNeeded("the login took too long")

    run(scenario)


def test_a_callback_of_a_refused_login_has_an_error_and_one_of_another_login_counts_nothing():
    login = asyncio.run(
        providers()["authorization_code"].begin_login(
            binding_of(AuthorizationServer("http://localhost").settings("authorization_code")),
            CALLBACK,
            now=NOW,
        )
    )
    assert isinstance(login, Login)
    state = login.secret.state
    refused = callback_code(f"error=access_denied&state={state}", login.secret)
    assert isinstance(refused, LoginNeeded)
    assert "access_denied" in refused.reason
    assert isinstance(callback_code(f"state={state}", login.secret), LoginNeeded)
    assert callback_code(f"error=access_denied&state={state}x", login.secret) is None
    assert callback_code("%", login.secret) is None
    assert login.secret.verifier not in repr(login)


def test_a_device_login_is_pending_until_the_person_has_agreed(server: AuthorizationServer):
    async def scenario() -> None:
        settings = server.settings("device_code")
        provider, binding = providers()["device_code"], binding_of(settings)
        assert is_login_provider(provider)
        login = await provider.begin_login(binding, "", now=NOW)
        assert isinstance(login, Login)
        assert login.prompt.user_code in login.prompt.url
        assert login.prompt.interval_s == 5
        pending = await provider.complete_login(binding, login.secret, "", now=NOW)
        assert isinstance(pending, RetryLater)
        assert "authorization_pending" in pending.reason
        await asyncio.to_thread(Browser().log_in, login.prompt.url)
        first = renewed(await provider.complete_login(binding, login.secret, "", now=NOW))
        second = renewed(await refresh(settings, first))
        assert second.value != first.value
        ended = await provider.complete_login(binding, login.secret, "", now=NOW)
        assert isinstance(ended, LoginNeeded)
        late = await provider.complete_login(binding, login.secret, "", now=NOW + 601)
        assert isinstance(late, LoginNeeded)

    run(scenario)


def test_without_a_login_there_is_no_refresh(server: AuthorizationServer):
    async def scenario() -> None:
        for name in ("authorization_code", "device_code"):
            settings, before = server.settings(name), server.counts()
            assert isinstance(await refresh(settings), LoginNeeded)
            without = LeaseCredential(value="canary")
            assert isinstance(await refresh(settings, without), LoginNeeded)
            assert server.counts() == before

    run(scenario)


def test_a_refresh_token_is_repeatable_only_if_its_server_does_not_rotate():
    there = AuthorizationServer("http://localhost")
    rotating = binding_of(there.settings("authorization_code"))
    steady = binding_of(there.settings("authorization_code", rotates=False))
    provider = providers()["authorization_code"]
    held = LeaseCredential(value="v", refresh_token="r")
    assert not provider.is_repeatable(rotating, held)
    assert provider.is_repeatable(steady, held)
    assert provider.is_repeatable(rotating, None)
    machine = binding_of(there.settings("client_credentials"))
    assert providers()["client_credentials"].is_repeatable(machine, held)


# --- a server that does not -----------------------------------------------------------------------

LOST: list[tuple[str, dict[str, Any]]] = [
    ("late", {"delay_ms": 60_000}),
    ("cut", {"cut": True}),
    ("gateway", {"status": 504, "body": ""}),
    ("markup", {"body": "<html>"}),
    ("list", {"body": "[]"}),
    ("null", {"body": "null"}),
    ("empty", {"body": "{}"}),
    ("form", {"body": "access_token=canary-token"}),
    ("number", {"body": json.dumps(TOKEN | {"access_token": 7})}),
    ("header", {"body": json.dumps(TOKEN | {"access_token": "canary\r\nX: 1"})}),
    ("dpop", {"body": json.dumps(TOKEN | {"token_type": "DPoP"})}),
    ("megabyte", {"body": json.dumps(TOKEN | {"access_token": "c" * (1 << 20)})}),
    ("dead", {"body": json.dumps(TOKEN | {"expires_in": 0})}),
    ("past", {"body": json.dumps(TOKEN | {"expires_in": -600})}),
    ("word", {"body": json.dumps(TOKEN | {"expires_in": "soon"})}),
    ("aeon", {"body": json.dumps(TOKEN | {"expires_in": 1e300})}),
    ("infinite", {"body": '{"access_token": "canary-token", "expires_in": 1e999}'}),
    ("deep", {"body": "[" * 50_000}),
]


@pytest.mark.parametrize("fault", [fault for _, fault in LOST], ids=[name for name, _ in LOST])
def test_a_lost_or_unusable_answer_is_repeated_only_where_that_does_no_harm(
    server: AuthorizationServer, fault: dict[str, Any]
):
    """A refresh token that may have been replaced is not sent a second time."""

    async def scenario() -> None:
        server.spoil(fault)
        harmless = await refresh(server.settings("client_credentials", timeout_s=SHORT_S))
        assert isinstance(harmless, RetryLater)
        held = LeaseCredential(value="canary", refresh_token="canary-refresh")
        for rotates, kind in ((True, LoginNeeded), (False, RetryLater)):
            server.spoil(fault | {"unread": True})
            settings = server.settings("device_code", rotates=rotates, timeout_s=SHORT_S)
            outcome = await refresh(settings, held)
            assert isinstance(outcome, kind), outcome
            assert "canary" not in f"{outcome}{harmless}"

    run(scenario)


ANSWERED: list[tuple[str, dict[str, Any], type[Outcome], float]] = [
    ("limit", {"status": 429, "body": "", "headers": {"Retry-After": "7"}}, RetryLater, 7),
    ("date", {"status": 429, "body": "", "headers": {"Retry-After": "tomorrow"}}, RetryLater, 0),
    ("age", {"status": 503, "body": "", "headers": {"Retry-After": "999999"}}, RetryLater, 3600),
    ("broken", {"status": 500, "body": "canary"}, RetryLater, 0),
    ("busy", {"status": 400, "body": '{"error": "temporarily_unavailable"}'}, RetryLater, 0),
    ("slow", {"status": 400, "body": '{"error": "slow_down"}'}, RetryLater, 10),
    ("grant", {"status": 400, "body": '{"error": "invalid_grant"}'}, LoginNeeded, 0),
    ("client", {"status": 401, "body": '{"error": "invalid_client"}'}, LoginNeeded, 0),
    ("echo", {"status": 400, "body": '{"error": "canary", "token": "canary"}'}, LoginNeeded, 0),
    ("plain", {"status": 400, "body": "canary"}, LoginNeeded, 0),
    ("absent", {"status": 404, "body": "<html>"}, LoginNeeded, 0),
    ("moved", {"status": 302, "body": "", "headers": {"Location": "/canary"}}, LoginNeeded, 0),
]


@pytest.mark.parametrize(
    ("fault", "kind", "after_s"), [case[1:] for case in ANSWERED], ids=[c[0] for c in ANSWERED]
)
def test_an_error_that_the_server_reports_says_whether_to_try_again(
    server: AuthorizationServer, fault: dict[str, Any], kind: type[Outcome], after_s: float
):
    async def scenario() -> None:
        held = LeaseCredential(value="canary", refresh_token="canary-refresh")
        for settings in (server.settings("client_credentials"), server.settings("device_code")):
            server.spoil(fault)
            outcome = await refresh(settings, held)
            assert isinstance(outcome, kind), outcome
            assert not isinstance(outcome, RetryLater) or outcome.after_s == after_s
            assert "canary" not in repr(outcome)

    run(scenario)


def test_a_token_of_ten_years_or_without_an_end_is_taken_as_it_is(server: AuthorizationServer):
    async def scenario() -> None:
        settings = server.settings("client_credentials")
        for lifetime, expires_at in ((315_360_000, NOW + 315_360_000), (None, None)):
            server.spoil({"body": json.dumps(TOKEN | {"expires_in": lifetime})})
            assert renewed(await refresh(settings)).expires_at == expires_at

    run(scenario)


def test_a_server_that_cannot_be_reached_has_used_up_nothing():
    async def scenario() -> None:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
        there = AuthorizationServer(f"http://127.0.0.1:{port}")
        held = LeaseCredential(value="v", refresh_token="r")
        assert isinstance(await refresh(there.settings("device_code"), held), RetryLater)
        nowhere = AuthorizationServer("https://no-such-host.invalid")
        assert isinstance(await refresh(nowhere.settings("device_code"), held), RetryLater)

    run(scenario)


def test_of_two_answers_to_one_request_the_first_counts():
    async def scenario() -> None:
        bodies = [json.dumps(TOKEN | {"access_token": name}).encode() for name in ("one", "two")]
        seen: list[bytes] = []

        async def answer_twice(reader: Any, writer: Any) -> None:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            for body in bodies:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            writer.close()

        async with await asyncio.start_server(answer_twice, "127.0.0.1", 0) as listener:
            url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            settings = AuthorizationServer(url).settings("client_credentials")
            assert renewed(await refresh(settings)).value == "one"
        assert len(seen) == 1

    run(scenario)


def test_a_server_that_hangs_holds_up_nothing_else(server: AuthorizationServer):
    async def scenario() -> None:
        hung = asyncio.Event()

        async def hang(reader: Any, writer: Any) -> None:
            await reader.readuntil(b"\r\n\r\n")
            hung.set()
            await reader.read()  # Until the client ends the connection.
            writer.close()

        async with await asyncio.start_server(hang, "127.0.0.1", 0) as listener:
            url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            settings = AuthorizationServer(url).settings("client_credentials")
            waiting = [asyncio.ensure_future(refresh(settings)) for _ in range(40)]
            await hung.wait()
            renewed(await refresh(server.settings("client_credentials")))
            assert not any(one.done() for one in waiting)
            for one in waiting:
                one.cancel()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in ended)

    run(scenario)
