"""The broker's protocol of S-expressions: readable on the wire, and easily spoken without a library."""

from omq.broker.sexp.client import Client, Subscription

__all__ = ["Client", "Subscription"]
