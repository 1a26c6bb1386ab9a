"""Buckets on JetStream: blobs, claims, snapshots, secrets and checkpoints."""

from rookery.bus.storage.blobs import JetStreamBlobs
from rookery.bus.storage.bucket import Bucket, JetStreamClaims
from rookery.bus.storage.stores import JetStreamCheckpointStore, JetStreamSecrets

__all__ = [
    "Bucket",
    "JetStreamBlobs",
    "JetStreamCheckpointStore",
    "JetStreamClaims",
    "JetStreamSecrets",
]
