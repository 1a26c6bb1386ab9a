"""An example: check the proof of a run without Rookery."""
