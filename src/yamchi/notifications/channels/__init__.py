"""The ways a message can go. A channel is one small class; add your own with `register`."""
