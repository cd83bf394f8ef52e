"""Messages: queues for the user, queues for the peers, and subscriptions."""
