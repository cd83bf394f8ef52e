from omq._core.calls.proxy import ProxyCore

class SyncProxy(ProxyCore):
    """The blocking proxy.

    Args:
        frontend: The core of the one socket.
        backend: That of the other one.
        capture: That of a socket which gets a copy of each message; `None`: there is none.
        control: That of a socket which gives commands; `None`: there is none.
    """

    def run(self) -> None:
        """Forwards until a command ends it.

        Raises:
            ClosedError: One of its sockets was closed.
            StateError: Another proxy serves one of its sockets; or the process has forked.
        """
