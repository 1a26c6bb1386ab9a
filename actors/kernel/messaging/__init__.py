"""Messages of actors: the mailbox, what is posted to it, asks from inside the node, and replies."""
