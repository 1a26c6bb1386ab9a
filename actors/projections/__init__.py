"""Read models: lists folded from facts, for questions about many entities. No rules."""
