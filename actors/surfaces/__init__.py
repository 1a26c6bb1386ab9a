"""Tool surfaces of a session, and the MCP servers behind some of them. Not joined to runs yet."""
