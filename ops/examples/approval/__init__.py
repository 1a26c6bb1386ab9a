"""A program that may not go on until somebody has said yes."""
