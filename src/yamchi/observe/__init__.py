"""What a running Yamchi tells about itself: log lines and metrics."""
