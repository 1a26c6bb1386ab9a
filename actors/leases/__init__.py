"""Auth leases: whether a credential is present, fresh, or needs a new login. Not joined to runs
yet."""
