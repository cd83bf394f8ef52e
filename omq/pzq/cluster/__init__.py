"""Decides which node of a cluster delivers a queue, and what the nodes tell each other. No socket, no clock, no disk.

The states, the messages and their order are in `docs/explanation/pzq.md`, under "The cluster".
"""
