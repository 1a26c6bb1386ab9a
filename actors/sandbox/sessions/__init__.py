"""Sessions in the sandbox: their queues, runs, logs, meters and snapshots."""
