"""Dispatchers: the inbox, an outside service, a webhook."""
