"""Other programs on the same queues: Node's BullMQ and Bull Board."""
