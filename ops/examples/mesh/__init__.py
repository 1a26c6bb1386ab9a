"""Three sessions that work for each other, with one approval by a person."""
