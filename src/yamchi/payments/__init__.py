"""Payments: what was asked of a provider, what the provider says became of it, and who is told."""
