"""What every test shares: how Hypothesis runs, and how processes started by tests can be stopped.

Machines are busy, so no example has a deadline.
"""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("rookery", deadline=None, database=None, print_blob=True)
settings.load_profile("rookery")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that put the suite into the background had it ignore Ctrl-C; children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
