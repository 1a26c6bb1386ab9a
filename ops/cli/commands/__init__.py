"""The commands; a file a group."""
