"""The loopback address of a login: what comes back by a browser, and what does not."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from rookery.ops.cli.commands.leases import LoginCallback
from rookery.schemas.errors import Refused


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=90) as answer:
            assert b"close this page" in answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_browser_brings_a_query_and_is_thanked(capfd: pytest.CaptureFixture[str]):
    with LoginCallback(0) as callback:
        assert status_of(f"{callback.redirect_uri}?code=canary&state=s") == 200
        assert callback.wait(30) == "code=canary&state=s"
        for wrong in ("/favicon.ico", "/callback", "/", f"/callback?{'c' * 9_000}"):
            assert status_of(callback.url + wrong) == 404
        assert callback.wait(0) is None
        many = [status_of(f"{callback.redirect_uri}?n={n}") for n in range(17)]
        assert many == [200] * 16 + [503]
    assert "canary" not in "".join(capfd.readouterr())


def test_a_port_that_is_in_use_is_refused_with_what_to_do():
    with LoginCallback(0) as callback:
        port = int(callback.url.rpartition(":")[2])
        with pytest.raises(Refused, match="redirect_port") as refused:
            LoginCallback(port)
        assert refused.value.code == "CONFIG_INVALID"
