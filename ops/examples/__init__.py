"""Examples to read, to copy and to start a node with."""
