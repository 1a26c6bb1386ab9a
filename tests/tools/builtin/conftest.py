"""A web server for each test, with or without TLS, and programs that may reach it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tools.builtin.http_programs import Programs
from tests.tools.builtin.web_server import Web


@pytest.fixture
def web() -> Iterator[Web]:
    served = Web()
    yield served
    served.stop()


@pytest.fixture
def secure_web() -> Iterator[Web]:
    served = Web(tls=True)
    yield served
    served.stop()


@pytest.fixture
def programs(web: Web) -> Programs:
    return Programs(web)
