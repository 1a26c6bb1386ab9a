"""Tools that come with Rookery: files and HTTP, each within an allow-list."""
