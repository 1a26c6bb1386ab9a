"""Projections: lists folded from facts, for queries about many entities."""
