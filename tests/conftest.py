"""What every test shares: how Hypothesis runs, how processes started by tests can be stopped, what
kills those that an interrupted run leaves, and ``--quick``: only the tests that start nothing.

Machines are busy, so no example has a deadline.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

import pytest
from hypothesis import settings

from tests.process_sweeper import start_sweeper
from tests.selection import LONG, MARK, QuickRun

settings.register_profile("rookery", deadline=None, database=None, print_blob=True)
settings.register_profile("quick", settings.get_profile("rookery"), max_examples=25)
settings.load_profile("rookery")

# Compiling the product takes longer than starting it: processes of ours keep what they compiled.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that put the suite into the background had it ignore Ctrl-C; children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="only tests that start no server, node, sandbox or process; campaigns in short, and "
        "a quarter of Hypothesis's examples",
    )


def pytest_configure(config: pytest.Config) -> None:
    start_sweeper()
    config.addinivalue_line("markers", f"{MARK}: a process or a sandbox, unseen by the rule")
    config.addinivalue_line("markers", f"{LONG}: cases of a campaign that a quick run leaves out")
    if config.getoption("--quick"):
        settings.load_profile("quick")
        config.pluginmanager.register(QuickRun(), "quick-run")


def pytest_collection_finish() -> None:
    """Freeze what the collection made: it lives until the end, and no later pass reads it. Tests
    make and drop millions of small things, few of them in cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
