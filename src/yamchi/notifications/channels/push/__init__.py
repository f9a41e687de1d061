"""Web Push: subscriptions of browsers, encryption (RFC 8291), VAPID signatures, and the channel itself."""
