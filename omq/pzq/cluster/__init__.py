"""The nodes of a cluster: which of them delivers a queue, and what they keep of each other's messages.

`docs/explanation/pzq.md` explains the states and their order, under "The cluster".

Nodes broadcast `CLUSTER | kind | body`. A body is JSON, with the sender's name (`from`) and what the kind has:

    KALV      each node to all, at each tick: the `incarnations` of its directory, the `number` of this message, its
              `store`, the `records` that it states, whom it has `heard`, what it `holds`, its `timeout`, and the store
              and incarnation of each other node that it has `known` last
    ASK       a holder to the leader, an owner to holders, the leader of another's queue to all: what do you
              make of these `keys`?
    TOLD      the answer: keys that it `have`s, that it `want`s and is to be sent, that are `gone`: finished
    GONE      the leader of another's queue to all, and a node that got it to the owner: these `keys` are finished.
              Answered by TOLD, `gone`, once that is kept
    DONE      each node to all, when its own have changed, and all that it has every 2 timeouts: which ids of
              owners' topics are `stated` as finished
    REMOVES   the node whose consumers acknowledged, to all: these `keys` are finished
    ASIDE     an older copy of a directory to all, at each tick: `why` it has no part in the cluster

ASK, TOLD and GONE have the receiver (`to`), the owner of the messages (`origin`) and the sender's `incarnation`.
Replicas go to a node's receive socket, from the owner to all, from a holder to who wants them, and are acknowledged
as a producer's message: `id | REPLICAS:owner | empty | (head | records)+` (see `omq.pzq.cluster.replica_batch`).

Each of them can be lost, late, or come twice. What matters is sent again until it is answered.
"""
