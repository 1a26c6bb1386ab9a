"""What Rookery adds to nats-py: connections, batched frames and reply inboxes."""
