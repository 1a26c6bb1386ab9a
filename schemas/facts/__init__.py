"""The facts of every family, one module for each, and what a run's facts add up to."""
