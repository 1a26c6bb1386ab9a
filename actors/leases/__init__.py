"""Auth leases: whether a credential is present, fresh, or needs a new login. Not joined to runs
yet.

``provider`` has the ports: what renews a credential, what keeps it, what tools get of it.
"""

from rookery.actors.leases.lease_machine import LEASE
from rookery.actors.leases.provider import (
    Binding,
    Credentials,
    CurrentCredential,
    LeaseCredential,
    LeaseSecrets,
    Login,
    LoginNeeded,
    LoginPrompt,
    LoginProvider,
    LoginSecret,
    Outcome,
    Provider,
    Renewed,
    RetryLater,
)

__all__ = [
    "LEASE",
    "Binding",
    "Credentials",
    "CurrentCredential",
    "LeaseCredential",
    "LeaseSecrets",
    "Login",
    "LoginNeeded",
    "LoginPrompt",
    "LoginProvider",
    "LoginSecret",
    "Outcome",
    "Provider",
    "Renewed",
    "RetryLater",
]
