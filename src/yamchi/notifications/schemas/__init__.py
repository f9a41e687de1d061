"""What travels: events in, notification jobs on the queue."""
