"""The fallback: the Python guest as a component, for a build whose modules cannot be linked."""
