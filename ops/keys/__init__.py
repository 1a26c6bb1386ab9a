"""Keys of a realm on this machine: the node's own, its vouchers, and those that seal secrets."""

from rookery.ops.keys.node_keys import (
    NodeKey,
    node_key_path,
    open_node_key,
    root_key_of,
    trust_roots,
    vouch,
)
from rookery.ops.keys.node_secrets import (
    OPERATORS,
    SNAPSHOTS,
    NodeSecrets,
    open_node_secrets,
    stored_name,
)
from rookery.ops.keys.sealing_keys import (
    ConfiguredKeys,
    SecretsRotation,
    keys_of,
    open_secrets,
    rotate,
)
from rookery.ops.keys.vouchers import TrustRoots, is_signed_voucher, operator_voucher, root_voucher

__all__ = [
    "OPERATORS",
    "SNAPSHOTS",
    "ConfiguredKeys",
    "NodeKey",
    "NodeSecrets",
    "SecretsRotation",
    "TrustRoots",
    "is_signed_voucher",
    "keys_of",
    "node_key_path",
    "open_node_key",
    "open_node_secrets",
    "open_secrets",
    "operator_voucher",
    "root_key_of",
    "root_voucher",
    "rotate",
    "stored_name",
    "trust_roots",
    "vouch",
]
