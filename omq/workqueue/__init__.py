"""Work queues over topics of a store: deliveries in turn, ack deadlines, redelivery and dead letters.

`queue` is one topic: which of its messages wait, come back, are finished or become dead letters. `consumer` is who
takes them: what it has in flight, and until when (`ack_deadlines`). `dispatcher` delivers queues to consumers in turn.
"""
