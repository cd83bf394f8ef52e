"""The nodes of a cluster: which of them delivers a queue, and what they tell each other and keep of each other's.

The states, the messages and their order are in `docs/explanation/pzq.md`, under "The cluster".
"""
