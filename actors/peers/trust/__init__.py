"""Whom a realm trusts: its own keys, the roster of peers, and the checks of their envelopes."""
