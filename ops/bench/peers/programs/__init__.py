"""One program a peer, run by the interpreter of the peers: they import no package of this project.

Each reads requests as lines of JSON, does its work with the peer's own API, and times it. ``lanes``
is what they share; it needs the standard library only.
"""
