"""Words of the machines of turns, leases, surfaces and peers; their views, effects, rejections."""
