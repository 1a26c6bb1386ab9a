"""What every test shares: how Hypothesis runs. Machines are busy, so no example has a deadline."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("rookery", deadline=None, database=None, print_blob=True)
settings.load_profile("rookery")
