"""How a command reaches its realm: a server, a node, or a store without a node."""
