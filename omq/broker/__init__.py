"""Named queues: a broker with topics that persist and replay, and its clients."""
