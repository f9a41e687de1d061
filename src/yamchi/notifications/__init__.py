"""Notifications: from an event to a message that arrives once."""
