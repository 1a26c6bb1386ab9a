"""Keys of approvers, nodes and peers, and of the realm's root; shared secrets of webhooks.

ed25519.py      keys and signatures. Keys travel as hex, and as PEM in files; the id of a key is
                the first 16 hex digits of its SHA3-256
checkpoints.py  what a node signs of the facts that it has appended
webhooks.py     requests with a signature by a shared secret, and the guard against their replay
"""
