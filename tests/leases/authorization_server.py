"""A real authorization server, ``oidc-provider`` of npm, in a process of its own; and a person who
logs in to it with a browser without JavaScript."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from http.client import HTTPResponse
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, build_opener, urlopen

from tests.node_packages import node_folder

__all__ = ["CLIENT_SECRET", "AuthorizationServer", "Browser", "authorization_server"]

PACKAGES = ("oidc-provider@9.13.3",)
PROGRAM = Path(__file__).with_name("authorization_server.mjs")
CLIENT_SECRET = "canary-client +/%:&= secret"
"""Of the clients ``machine`` and ``poster``, with what must be encoded in a header and a form."""
TIMEOUT_S = 30


class AuthorizationServer:
    """What a test knows of the server, and the bindings to its clients."""

    def __init__(self, url: str) -> None:
        self.url = url

    def counts(self) -> dict[str, int]:
        """The requests to the token endpoint, by grant."""
        with urlopen(f"{self.url}/_counts", timeout=TIMEOUT_S) as answer:
            found: dict[str, int] = json.load(answer)
            return found

    def spoil(self, *faults: dict[str, Any]) -> None:
        """Spoil the next answers of the token endpoint, one fault each."""
        with urlopen(f"{self.url}/_faults", json.dumps(faults).encode(), timeout=TIMEOUT_S):
            """It heeds them from now on."""

    def settings(self, provider: str, client: str = "", **more: Any) -> dict[str, Any]:
        """The table of a binding to this server."""
        table: dict[str, Any] = {"provider": provider, "token_url": f"{self.url}/token"}
        match provider:
            case "client_credentials":
                table |= {"client_id": client or "machine", "scopes": ["api"]}
                table |= {"client_secret": "env:CLIENT_SECRET"}
            case "authorization_code":
                table |= {"client_id": "browser", "authorize_url": f"{self.url}/auth"}
                table |= {"scopes": ["openid", "offline_access"]}
                table |= {"authorize_parameters": {"prompt": "consent"}}
            case "device_code":
                table |= {"client_id": "device", "device_url": f"{self.url}/device/auth"}
                table |= {"scopes": ["openid", "offline_access"]}
        return table | more


@contextmanager
def authorization_server(**options: Any) -> Iterator[AuthorizationServer]:
    """A server for this block; the test is skipped where it cannot be had."""
    folder = node_folder("authorization-server", PACKAGES, PROGRAM)
    arguments = json.dumps({"secret": CLIENT_SECRET, **options})
    with subprocess.Popen(
        ["node", str(folder / PROGRAM.name), arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin:
            yield AuthorizationServer(process.stdout.readline().strip())


class _NoCallback(HTTPRedirectHandler):
    """Follows redirects until one leaves the server."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str):
        if urlsplit(newurl).path == "/callback":
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Browser:
    """A person who fills in every form of the server, and agrees."""

    def __init__(self) -> None:
        policy = DefaultCookiePolicy(strict_ns_domain=DefaultCookiePolicy.DomainLiberal)
        cookies = HTTPCookieProcessor(CookieJar(policy))
        self._opener = build_opener(cookies, _NoCallback)

    def log_in(self, url: str, **typed: str) -> str:
        """The address where the server sends the browser in the end, or its last page."""
        page, address = self._open(url)
        for _ in range(8):
            if address is not None:
                return address
            form = re.search(r"<form[^>]*?>.*?</form>", page, re.DOTALL)
            if form is None:
                return page
            page, address = self._submit(url, form[0], typed)
        raise AssertionError(f"the login does not end: {page}")

    def _submit(self, url: str, form: str, typed: dict[str, str]) -> tuple[str, str | None]:
        action = re.search(r'action="([^"]*)"', form)
        assert action is not None
        fields = {"login": "ada", "password": "any", "confirm": "yes"} | typed
        for name, value in re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', form):
            fields[unescape(name)] = unescape(value)
        return self._open(urljoin(url, unescape(action[1])), urlencode(fields).encode())

    def _open(self, url: str, body: bytes | None = None) -> tuple[str, str | None]:
        try:
            answer: HTTPResponse = self._opener.open(url, body, timeout=TIMEOUT_S)
        except OSError as error:  # A redirect that is not followed.
            headers = getattr(error, "headers", None)
            if headers is None or not headers.get("Location"):
                raise
            return "", headers["Location"]
        with answer:
            return answer.read().decode(), None
