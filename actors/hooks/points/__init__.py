"""The points at which a run invokes its hooks.

``points`` has a method a point, ``invocations`` asks the hooks of one by the ``coordinator``, and
``records`` are what the contract's journal holds of it. ``views`` is what a hook sees.
"""

from rookery.actors.hooks.points.invocations import HookStop
from rookery.actors.hooks.points.points import Hooked, HookPoints, requests_retry
from rookery.actors.hooks.points.records import journal_records

__all__ = ["HookPoints", "HookStop", "Hooked", "journal_records", "requests_retry"]
