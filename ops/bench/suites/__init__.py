"""The benches by name."""
