"""The inproc names of one context, which are whole endpoints, and the diallers that wait for a name."""

from typing import Any

class Names:
    """Safe from every thread, also in a signal handler that has interrupted one of these calls."""

    def bind(self, name: str, listener: Any) -> None:
        """Takes a name; diallers wait until it is open.

        Raises:
            BindError: The name is taken.
        """

    def open(self, name: str) -> list[Any]:
        """Marks a name's listener as ready to accept; returns the diallers that waited for it."""

    @property
    def bound(self) -> list[str]:
        """The names that are taken."""

    @property
    def waited_for(self) -> list[str]:
        """The names that diallers wait for."""

    def is_open(self, name: str) -> bool:
        """Whether a listener accepts under this name now."""

    def unbind(self, name: str) -> None:
        """Gives a name back. Idempotent."""

    def find(self, name: str, dialer: Any) -> Any:
        """The listener of a name that is open; `None` if there is none: the dialler waits for it then."""

    def forget(self, name: str, dialer: Any) -> None:
        """Forgets a dialler that waits no longer. Idempotent."""
