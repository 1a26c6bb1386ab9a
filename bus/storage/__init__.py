"""Buckets on JetStream: blobs, claims, snapshots, secrets and checkpoints."""
