"""Tool surfaces: which tools a session has, and the MCP servers some of them come from."""
