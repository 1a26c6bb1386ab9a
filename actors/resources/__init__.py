"""Resources: URIs that programs and clients resolve to refs, and read.

``router`` is the contract's. ``host_resolvers`` serve what the node's configuration offers,
``session_resolvers`` what the session itself has; ``capture`` bounds and stores the bytes, and
``reader`` checks the second step, in which they are read. A program's call is a call as any; its
fact has the resolution and the bytes, so a run is replayed without the source.
"""

from __future__ import annotations

from rookery.actors.resources.capture import CapturedBytes, CaptureStore
from rookery.actors.resources.host_resolvers import StaticContent, create_resolvers
from rookery.actors.resources.reader import ResourceReader

__all__ = ["CaptureStore", "CapturedBytes", "ResourceReader", "StaticContent", "create_resolvers"]
