"""Work queues over topics of a store: deliveries in turn, ack deadlines, redelivery and dead letters.

`queue` tracks the messages of one topic: waiting, redelivered, finished, dead letters. `consumer` tracks the messages
in flight at one consumer, and `ack_deadlines` their deadlines. `dispatcher` delivers queues to consumers in turn.
"""
