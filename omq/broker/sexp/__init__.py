"""The broker's S-expression protocol: human-readable, and simple to implement without a library."""

from omq.broker.sexp.client import Client, Subscription

__all__ = ["Client", "Subscription"]
