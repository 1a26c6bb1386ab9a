"""Buckets on JetStream: blobs, claims, snapshots, secrets and checkpoints."""

from rookery.bus.storage.blobs import JetStreamBlobs
from rookery.bus.storage.bucket import Bucket
from rookery.bus.storage.claims import JetStreamClaims
from rookery.bus.storage.images import move_images
from rookery.bus.storage.stores import JetStreamCheckpointStore, JetStreamSecrets

__all__ = [
    "Bucket",
    "JetStreamBlobs",
    "JetStreamCheckpointStore",
    "JetStreamClaims",
    "JetStreamSecrets",
    "move_images",
]
