"""Keys of a realm on this machine: the node's own, its vouchers, and those that seal secrets."""

from __future__ import annotations

from rookery.ops.keys.node_keys import NodeKey, TrustRoots
from rookery.ops.keys.sealing_keys import ConfiguredKeys, NodeSecrets, SecretsRotation

__all__ = ["ConfiguredKeys", "NodeKey", "NodeSecrets", "SecretsRotation", "TrustRoots"]
