"""Reads and uploads of clients, which nodes serve: the services, and the clients of them."""

from rookery.bus.reads.feed import NodeFeed
from rookery.bus.reads.realm_reads import NodeBlobs, NodeJournal
from rookery.bus.reads.service import ReadService, UploadService

__all__ = ["NodeBlobs", "NodeFeed", "NodeJournal", "ReadService", "UploadService"]
