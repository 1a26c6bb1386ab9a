"""Auth leases: whether a credential is there, fresh, or somebody has to log in again."""
