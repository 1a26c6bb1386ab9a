"""The Python guest: how it is built, linked and spoken to."""

from rookery.actors.sandbox.python.build import GuestCache, cache_folder, write_stderr
from rookery.actors.sandbox.python.realm_build import RealmBuild

__all__ = [
    "GuestCache",
    "RealmBuild",
    "cache_folder",
    "write_stderr",
]
