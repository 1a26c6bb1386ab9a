"""A program that waits for an approval."""
