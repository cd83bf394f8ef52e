"""Several devices that keep each other's messages: what each knows, and what it does about it. No socket, no clock.

Each node has a queue of its own, and holds replicas of the others'. A queue has one possessor at a time, who delivers
it: its owner, or another node while the owner is silent. Of each queue a node states one record, `(epoch, possessor)`,
which only grows; at first it is `(0, owner)`. A record that names its sender is a claim; the same record stated by
another node is its support. Who is supported by a majority of all nodes that have confirmed to hear it lately has the
lease, and delivers.

| state of a node, for one queue | what it is | what it may do |
| --- | --- | --- |
| quiet | began with an empty disk; what it has promised is forgotten | states nothing, until it has heard all \
others or `timeout` is over |
| following | its record names another node | supports that one |
| claiming | its record names itself, without a lease | waits for a majority |
| possessing | likewise, with the lease | delivers |
| handing back | likewise, and the owner claims it | delivers nothing; tells the owner what was acknowledged, follows |

A record moves to another node's only if its present possessor is silent for longer than `timeout`, or has itself moved
on, or is this node, and has no lease or has handed back. A lease by a peer ends 0.8 `timeout` after the sending of the
last keep-alive that the peer says it heard, so it is over before the peer may move. Where timeouts differ, it is the
shorter one of the two; keep-alives come ten times in the shortest of all.

| message | from, to | says |
| --- | --- | --- |
| `KALV` endpoint state | each to all, at each tick | life, number, store, records, whom it hears, what it holds, its \
timeout, which lives of the others it knows |
| `ASK` keys | holder to possessor; owner to holders | what do you make of these? |
| `TOLD` have, want, gone | back | held; not held, and to be sent; done with |
| `GONE` keys | who has delivered another's messages, to all | these are done with; answered by `TOLD` gone |
| `REPLICA` body | owner to all; holder to who wants it | keep this; acknowledged as a producer's message is |
| `REMOVE` key | who was told by a consumer, to all | this is done with |
| `CHECK` key owner | holder to an owner that speaks no `ASK`, and back | answered by `REMOVE` if it is done with |

Each can be lost, late, or come twice. What matters is said again until it is answered.
"""
