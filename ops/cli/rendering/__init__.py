"""Facts, runs and approvals as lines of text."""
