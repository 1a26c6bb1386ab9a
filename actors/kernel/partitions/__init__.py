"""The partitions of a node: their ownership, the recovery of their effects, the watermark."""
