"""Ed25519 keys: of approvers, nodes and peers, and of the realm's root. They travel as hex, and as
PEM in files; the id of a key is the first 16 hex digits of its SHA3-256. A node signs checkpoints.
Webhooks have a signature by a shared secret.
"""

from rookery.actors.keys.checkpoints import (
    CheckpointWriter,
    Head,
    checkpoint_bytes,
    checkpoint_digest,
    head_path,
    heads_root,
    vouched_bytes,
)
from rookery.actors.keys.ed25519 import (
    KEY_BYTES,
    SigningKey,
    derive_seed,
    is_sound_key,
    is_valid_signature,
    key_id_of,
    read_private_key,
    read_public_key,
    read_seed,
    verify_once,
)
from rookery.actors.keys.webhooks import PostWebhook, ReplayGuard, WebhookKey, WebhookResponse

__all__ = [
    "KEY_BYTES",
    "CheckpointWriter",
    "Head",
    "PostWebhook",
    "ReplayGuard",
    "SigningKey",
    "WebhookKey",
    "WebhookResponse",
    "checkpoint_bytes",
    "checkpoint_digest",
    "derive_seed",
    "head_path",
    "heads_root",
    "is_sound_key",
    "is_valid_signature",
    "key_id_of",
    "read_private_key",
    "read_public_key",
    "read_seed",
    "verify_once",
    "vouched_bytes",
]
