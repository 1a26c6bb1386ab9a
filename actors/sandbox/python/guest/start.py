"""The entry point of the guest: it reads library and time zones, then replaces all file functions.

A module imported before ``exchange`` may hold a function that reads the host's files. So the order
matters: nearly all modules are imported after it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from guest.system import error_numbers, open_files, os_calls
from guest.system.library import FOLDER, LIBRARY
from guest.system.packages import PACKAGES
from guest.system.zones import ZONES

__all__ = ["WitWorld"]


def exchange(before: dict[int, Any]) -> None:
    """Replace functions, identified by their ids, in all loaded modules."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for name, value in list(names.items()):
            if id(value) in before and not name.startswith("_real_"):
                names[name] = before[id(value)]


assert ZONES.names()
LIBRARY.add(FOLDER)
LIBRARY.add(os.path.dirname(__file__), __package__ or "guest")
PACKAGES.read()
error_numbers.install()
exchange(open_files.install() | os_calls.install())
LIBRARY.install()

from guest.app import WitWorld, prepare  # noqa: E402 - after ``exchange``.

prepare()
LIBRARY.seal()
