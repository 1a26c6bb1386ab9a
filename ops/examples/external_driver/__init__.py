"""A program outside of the nodes that drives runs over plain NATS."""
