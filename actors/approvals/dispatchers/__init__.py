"""The ways to an approver: the inbox, an outside service, a webhook."""
