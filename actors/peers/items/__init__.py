"""What a session gets from its peers: the queue of items, receivers, and the responder."""
