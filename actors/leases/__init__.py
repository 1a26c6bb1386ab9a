"""Auth leases: whether a credential is present, fresh, or needs a new login. Not joined to runs
yet."""

from rookery.actors.leases.lease_machine import LEASE

__all__ = [
    "LEASE",
]
