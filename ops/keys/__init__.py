"""Keys of a realm on this machine: the node's own, its vouchers, and those that seal secrets."""

from rookery.ops.keys.node_keys import (
    NodeKey,
    TrustRoots,
    node_key_path,
    open_node_key,
    root_key_of,
    trust_roots,
    vouch,
)
from rookery.ops.keys.sealing_keys import (
    OPERATORS,
    SNAPSHOTS,
    ConfiguredKeys,
    NodeSecrets,
    SecretsRotation,
    keys_of,
    open_node_secrets,
    read_value_seal,
    rotate,
    stored_name,
)

__all__ = [
    "OPERATORS",
    "SNAPSHOTS",
    "ConfiguredKeys",
    "NodeKey",
    "NodeSecrets",
    "SecretsRotation",
    "TrustRoots",
    "keys_of",
    "node_key_path",
    "open_node_key",
    "open_node_secrets",
    "read_value_seal",
    "root_key_of",
    "rotate",
    "stored_name",
    "trust_roots",
    "vouch",
]
