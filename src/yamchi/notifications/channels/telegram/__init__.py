"""Telegram: the Bot API, its HTML, and the channel itself."""
