"""Messages: what waits for the user, whom a message goes to, who subscribes to what."""
