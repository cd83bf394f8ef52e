"""The attempts at one endpoint, for the error of the call that waits for its peer."""

from __future__ import annotations


class Attempts:
    """The attempts at one endpoint while a call waits for its peer.

    Attributes:
        trouble: Why the last attempt has failed, without the endpoint; empty before the first failure.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.trouble = ""
