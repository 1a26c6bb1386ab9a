"""Access of commands to their realm: by a server, a node, or a store without a node."""
