"""Words of the machines of turns, leases, surfaces and peers, and their views."""
