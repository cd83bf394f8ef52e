"""The last failure at one endpoint, for the error of a call that waits for a peer there."""

from __future__ import annotations


class ConnectAttempts:
    """The attempts to connect to one endpoint while a call waits for its peer.

    Attributes:
        last_failure: The reason why the last attempt failed, without the endpoint; empty before the first failure.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.last_failure = ""
