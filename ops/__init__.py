"""Wires and runs: command line, node, configuration, metrics, benches."""
