"""A nats-server as a child process, and its store."""
