"""Peers on the wire: the roster of those that a realm trusts, and the envelopes between them."""
