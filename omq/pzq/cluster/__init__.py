"""The cluster of devices: the leader of each queue, and the replication of messages.

`docs/explanation/pzq.md` explains the states under "The cluster".

Nodes broadcast `CLUSTER | kind | body`. A body is JSON. It has the sender's name (`from`) and the fields of its kind:

    KALV      the keep-alive of each node to all, at each tick: the `incarnations` of its directory, the `number` of
              this message, its `store`, the leaders that it votes for (`records`), the last keep-alive of each peer
              (`heard`), its number of replicas by owner (`holds`), its `timeout`, and the last `known` store and
              incarnation of each peer
    ASK       a replica to the leader, an owner to its replicas, the leader of another node's queue to all: asks for
              the state of these `keys`
    TOLD      the answer to ASK: the keys that the node has (`have`), lacks (`want`), or knows as finished (`gone`)
    GONE      the leader of another node's queue to all, and a receiver of GONE to the owner: these `keys` are
              finished. The answer is TOLD with `gone`, once that is on the disk
    DONE      the ack checkpoints (`stated`): each node sends its own to all when they change, and those of all
              owners every 2 timeouts
    REMOVES   the node whose consumers acknowledged, to all: these `keys` are finished
    ASIDE     a node whose directory is an older copy, to all, at each tick: `why` it takes no part in the cluster

ASK, TOLD and GONE have the receiver (`to`), the owner of the messages (`origin`) and the sender's `incarnation`.
Replicas go to a node's receive socket: from the owner to all, and from a replica to a node that lacks them. They are
acknowledged as a producer's message: `id | REPLICAS:owner | empty | (head | records)+`
(see `omq.pzq.cluster.replica_batch`).

A message can be lost, late or duplicated. ASK, GONE and replicas are sent again until they are answered.
"""
