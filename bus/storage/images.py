"""The move of memory images out of the blobs, where realms of older versions have them.

Images of sessions have a bucket of their own, because every client may read a blob.
"""

from __future__ import annotations

from typing import Final

from rookery.bus.storage.blobs import JetStreamBlobs

__all__ = ["move_images"]

IMAGE_START: Final = b"ROOKSNAP"
"""With these bytes every image begins, and no other blob."""


async def move_images(blobs: JetStreamBlobs, images: JetStreamBlobs) -> int:
    """Move the images of a realm of an older version out of its blobs; returns their number.

    An image is copied with its mark or pin before it is removed, so the move may be interrupted and
    repeated at any point. No node of the realm may run.
    """
    moved = 0
    for digest in await blobs.digests():
        if (await blobs.start_of(digest)).startswith(IMAGE_START):
            await images.copy(digest, blobs)
            await blobs.remove(digest)
            moved += 1
    return moved
