"""``rookery leases``: list, show, log in to, refresh, release and restore leases of credentials."""

from __future__ import annotations

import asyncio
import math
import queue
import sys
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

from rookery.actors.leases import list_leases
from rookery.bus.clock import SystemClock
from rookery.ops.cli.access.realm_access import OfflineRealm, local_server, open_realm
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import clock_time, print_json, print_line, print_table, printable
from rookery.ops.http_server import HttpServer
from rookery.schemas.commands import FinishLogin, HandleInput, LeasesQuery, StartLogin
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.machines.lease import LeaseKey
from rookery.schemas.machines.views import LeaseView
from rookery.schemas.protection.bindings import AuthorizationCodeSettings
from rookery.schemas.replies import LeaseList, ListedLease, LoginStarted, LoginStatus

__all__ = ["LoginCallback", "app"]

app = App(name="leases", help_format="plaintext")

LeaseOption = Annotated[
    str, Parameter(help="BINDING, BINDING:PROFILE, or the key that `leases list` shows.")
]
_COLUMNS = ["LEASE", "STATUS", "EXPIRES", "CREDENTIALS", "WAITING CALLS", "WHY"]


@app.command(name="list")
def list_(*, options: Options = NO_OPTIONS) -> int:
    """List the leases of the realm. No list has a credential."""
    with local_server(options):
        found = asyncio.run(_list(options, LeasesQuery()))
    if options.json:
        print_json(found)
    else:
        print_table(_COLUMNS, map(_row, found.leases), empty="no leases")
    return 0


@app.command
def show(lease: LeaseOption, *, options: Options = NO_OPTIONS) -> int:
    """Show a lease, and the command that leads to a valid credential."""
    with local_server(options):
        found = asyncio.run(_require(options, _key(options, lease)))
    if options.json:
        print_json(found)
        return 0
    for name, cell in zip(_COLUMNS, _row(found), strict=True):
        print_line(f"{name.lower():<14} {cell}")
    if found.retry_at_ms:
        print_line(f"{'next attempt':<14} {clock_time(found.retry_at_ms)}")
    if found.login_required:
        print_line(f"log in: rookery leases login {found.lease}")
    if found.may_be_lost:
        print_line(f"{'refresh token':<14} may be used up: `leases refresh` needs --again")
    return 0


@app.command
def login(
    lease: LeaseOption,
    *,
    port: Annotated[
        int | None,
        Parameter(help="Port where the browser returns; default: the binding's, else a free one."),
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Log in, by a browser on this machine or by a code that you confirm on another device."""
    key = _key(options, lease)
    if port is None:
        port = _redirect_port(options, key)
    with closing(LoginCallback(port)) as callback:
        status = asyncio.run(_login(options, key, callback))
    if options.json:
        print_json(status)
    else:
        print_line(f"lease {key} has a credential, {_expiry(status.expires_at)}")
    return 0


@app.command
def refresh(
    lease: LeaseOption,
    *,
    again: Annotated[
        bool,
        Parameter(negative="", help="Also if that uses a refresh token which may be used up."),
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Let the node get a newer credential now, also after a failure that required a login."""
    return _print_view(options, lease, "request_credential", {"again": again} if again else {})


@app.command
def release(lease: LeaseOption, *, options: Options = NO_OPTIONS) -> int:
    """Release the credential: it is deleted, and calls that need it wait for a login. Logins in
    progress continue."""
    return _print_view(options, lease, "release_credential_lifecycle", {})


@app.command
def restore(lease: LeaseOption, *, options: Options = NO_OPTIONS) -> int:
    """Publish the sealed credential of a lease again, for example if a login was required by
    mistake."""
    key = _key(options, lease)
    found = asyncio.run(_require(options, key))
    snapshot = {"phase": "Valid", "credential_present": True, "generation": found.generation}
    never = 2**64 - 1
    expires_at = never if found.expires_at is None else found.expires_at
    params = {"snapshot": snapshot, "expires_at": expires_at}
    return _print_view(options, key, "restore_auth_lifecycle_snapshot", params)


# --- requests -------------------------------------------------------------------------------------


async def _list(options: Options, query: LeasesQuery) -> LeaseList:
    async with open_realm(options) as realm:
        found = await realm.try_ask("leased", query, LeaseList)
        if found is not None:
            return found
        return await list_leases(realm.journal, query, SystemClock().now_ms())


async def _require(options: Options, key: str) -> ListedLease:
    found = (await _list(options, LeasesQuery(lease=key))).leases
    if not found:
        raise Refused(
            "LEASE_UNAVAILABLE", f"the realm has no lease {key}", hint="rookery leases list"
        )
    return found[0]


def _print_view(options: Options, lease: str, on: str, params: dict[str, Any]) -> int:
    key = _key(options, lease)
    view = asyncio.run(_input(options, key, HandleInput(input=on, params=params)))
    if options.json:
        print_json(view)
    else:
        phase = "no credential" if view.phase is None else view.phase.value
        print_line(f"lease {key}: {phase}; see: rookery leases show {key}")
    return 0


async def _input(options: Options, key: str, command: HandleInput) -> LeaseView:
    async with open_realm(options) as realm:
        return await realm.ask("leases", key, command, LeaseView)


async def _login(options: Options, key: str, callback: LoginCallback) -> LoginStatus:
    async with open_realm(options) as realm:
        begin = StartLogin(redirect_uri=callback.redirect_uri)
        started = await realm.ask("login", key, begin, LoginStarted)
        print(f"open {started.url}", file=sys.stderr)
        if started.user_code:
            print(f"and enter {started.user_code}; waiting ...", file=sys.stderr)
            return await _poll(realm, key, started)
        print("and log in; waiting for the browser ...", file=sys.stderr)
        return await _await_browser(realm, key, started, callback)


async def _poll(realm: OfflineRealm, key: str, started: LoginStarted) -> LoginStatus:
    pause_s, shown = started.interval_s, ""
    while _left_s(started) > 0:
        await asyncio.sleep(pause_s)
        finish = FinishLogin(flow_id=started.flow_id)
        status = await realm.ask("finish_login", key, finish, LoginStatus)
        if status.done:
            return status
        line = _pending_line(status.reason, _left_s(started))
        if line != shown:
            shown = line
            print(line, file=sys.stderr, flush=True)
        pause_s = max(started.interval_s, status.retry_after_s)
    raise _too_late()


def _pending_line(reason: str, left_s: float) -> str:
    """A line for each minute, and for each other reason."""
    return f"no login yet, {math.ceil(left_s / 60)} min left: {printable(reason)}"


async def _await_browser(
    realm: OfflineRealm, key: str, started: LoginStarted, callback: LoginCallback
) -> LoginStatus:
    while (left_s := _left_s(started)) > 0:
        query = await asyncio.to_thread(callback.wait, min(left_s, 1.0))
        if query is None:
            continue
        finish = FinishLogin(flow_id=started.flow_id, query=query)
        try:
            status = await realm.ask("finish_login", key, finish, LoginStatus)
        except Refused as refusal:
            if refusal.code != "INVALID_ARGUMENT":
                raise
            continue  # Another program called the address.
        if status.done:
            return status
        raise Failed("LOGIN_FAILED", status.reason)
    raise _too_late()


def _left_s(started: LoginStarted) -> float:
    return started.expires_at - SystemClock().now_ms() / 1_000


def _too_late() -> Failed:
    return Failed("LOGIN_FAILED", "the login took too long")


# --- words ----------------------------------------------------------------------------------------


def _key(options: Options, lease: str) -> str:
    """The key of the lease in the realm of the options."""
    realm = options.load().config.realm
    return str(LeaseKey.parse(lease if lease.startswith(f"{realm}:") else f"{realm}:{lease}"))


def _redirect_port(options: Options, key: str) -> int:
    binding = options.load().config.bindings.get(LeaseKey.parse(key).binding)
    return binding.redirect_port if isinstance(binding, AuthorizationCodeSettings) else 0


def _row(lease: ListedLease) -> tuple[object, ...]:
    status = "login required" if lease.login_required else _status(lease)
    return (
        lease.lease,
        status,
        _expiry(lease.expires_at),
        lease.generation,
        lease.waiting_calls,
        lease.reason,
    )


def _status(lease: ListedLease) -> str:
    found: str = msgspec.to_builtins(lease.status)
    return found if lease.phase is None else f"{found} ({lease.phase.value})"


def _expiry(expires_at: int | None) -> str:
    return "never expires" if expires_at is None else f"expires {clock_time(expires_at * 1_000)}"


# --- login callback -------------------------------------------------------------------------------

# The loopback address where a browser comes back after a login, on the person's own machine.
#
# It serves one login and judges nothing: what the browser brings goes to the provider, which knows
# the login's state. Any program of the machine may call it, so it holds a few calls at most.


_PATH: Final = "/callback"
_CALLS_MAX: Final = 16
_QUERY_CHARACTERS_MAX: Final = 8_192
_PAGE: Final = b"<!doctype html><title>Rookery</title><p>You can close this page."


class LoginCallback(HttpServer):
    """Listens from its creation until ``close``."""

    def __init__(self, port: int) -> None:
        self._queries: queue.Queue[str] = queue.Queue(_CALLS_MAX)
        super().__init__(
            "127.0.0.1",
            port,
            _handler(self._queries),
            what="login-callback",
            hint="end the other login, or choose another redirect_port of the binding; 0: any",
        )

    @property
    def redirect_uri(self) -> str:
        """Where the authorization server is to send the browser."""
        return f"{self.url}{_PATH}"

    def wait(self, timeout_s: float) -> str | None:
        """The query of the next call; ``None`` if there is none in time. Blocks its thread."""
        try:
            return self._queries.get(timeout=timeout_s)
        except queue.Empty:
            return None


def _handler(queries: queue.Queue[str]) -> type[BaseHTTPRequestHandler]:
    class LoginCallbackHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path != _PATH or not query or len(query) > _QUERY_CHARACTERS_MAX:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                queries.put_nowait(query)
            except queue.Full:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(_PAGE)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            self.wfile.write(_PAGE)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing: the query has a code."""

    return LoginCallbackHandler
