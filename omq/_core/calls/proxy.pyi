from typing import Any

class ProxyCore:
    """What a proxy does with its sockets, without waiting."""

    def __init__(self, frontend: Any, backend: Any, capture: Any, control: Any) -> None: ...
    @property
    def draining(self) -> bool:
        """Whether TERMINATE has come: `turn` looks at the clock, too."""

    @property
    def ended(self) -> bool:
        """Whether a command has ended it."""

    def statistics(self) -> list[bytes]:
        """Messages and bytes received and sent by the frontend, then by the backend: eight unsigned 64-bit numbers."""
