"""State machines as tables of transitions, and the decider that runs them for an entity."""
