"""SCATTER and GATHER: the pipeline of messages of one part (RFC 49)."""

from __future__ import annotations

from omq.routing.push_pull import Pull, Push


class Scatter(Push):
    """Each message goes to one of the peers that can take it, in turn (RFC 49, The SCATTER Socket Type)."""


class Gather(Pull):
    """Messages are taken from all peers in turn (RFC 49, The GATHER Socket Type)."""
