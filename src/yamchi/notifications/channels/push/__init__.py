"""Web Push: browsers that asked for messages, and how a message gets to them sealed and signed."""
