"""Rookery beside its peers: the same work on other runtimes, in the same run, as ratios."""

from rookery.ops.bench.peers.comparison import (
    PARTS,
    Comparison,
    PeerRow,
    choose,
    compare_peers,
)

__all__ = ["PARTS", "Comparison", "PeerRow", "choose", "compare_peers"]
