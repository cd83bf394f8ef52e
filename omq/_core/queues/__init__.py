"""Message queues: receive and send queues of a socket, its peers, and the subscription matcher."""
