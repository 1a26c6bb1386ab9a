"""Reads and uploads of clients, which nodes serve: the services, and the clients of them."""

from rookery.bus.reads.blobs import NodeBlobs
from rookery.bus.reads.feed import NodeFeed
from rookery.bus.reads.journal import NodeJournal
from rookery.bus.reads.service import ReadService
from rookery.bus.reads.uploads import UploadService

__all__ = ["NodeBlobs", "NodeFeed", "NodeJournal", "ReadService", "UploadService"]
