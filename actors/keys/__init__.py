"""Keys of approvers, nodes and peers, and of the realm's root; shared secrets of webhooks.

``ed25519`` has keys and signatures: keys travel as hex, and as PEM in files, and the id of a key is
the first 16 hex digits of its SHA3-256. ``approver_signatures`` is what approvers sign,
``checkpoints`` what a node signs of the facts that it has appended; ``json_signatures`` verifies
what agents elsewhere have signed. ``webhooks`` has requests with a signature by a shared secret,
and the guard against their replay.
"""
