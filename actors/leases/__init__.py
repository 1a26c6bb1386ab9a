"""Auth leases: whether a credential is present, fresh, or needs a new login.

``provider`` has the ports: what renews a credential, what keeps it, what tools get of it. The owner
of a lease renews its credential (``refresh_rules`` decides, ``executor`` acts) and answers the
people who log in (``logins``); every node knows the leases of its tools (``credentials``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.leases.credentials import LeaseStates
    from rookery.actors.leases.logins import list_leases
    from rookery.actors.leases.node_leases import NodeLeases
    from rookery.actors.leases.provider import Binding, Provider

__all__ = ["Binding", "LeaseStates", "NodeLeases", "Provider", "list_leases"]

__getattr__ = lazy_names(
    __name__,
    {
        "credentials": ("LeaseStates",),
        "logins": ("list_leases",),
        "node_leases": ("NodeLeases",),
        "provider": ("Binding", "Provider"),
    },
)
