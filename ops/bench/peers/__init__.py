"""Rookery beside its peers: the same work on other runtimes, in the same run, as ratios."""

from rookery.ops.bench.peers.catalogue import PEERS, PeerRuntime
from rookery.ops.bench.peers.comparison import (
    Comparison,
    PeerRow,
    choose,
    compare_peers,
    record_rows,
)
from rookery.ops.bench.peers.workloads import PARTS

__all__ = [
    "PARTS",
    "PEERS",
    "Comparison",
    "PeerRow",
    "PeerRuntime",
    "choose",
    "compare_peers",
    "record_rows",
]
