"""The client of a realm: runs, approvals and sessions over NATS."""
