"""Messages that the end of the process makes undeliverable: only sockets of this process could receive them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from omq.engine.socket import Engine
from omq.transport import bindings_of, is_local, without_path

_REASON: Final = "only sockets of this process could receive it, and the process ends"
_CONTEXT_REASON: Final = "only sockets of its context could receive it, and the context ends"


class LocalPeers:
    """Finds the sockets whose peers are all in this process, when the interpreter ends.

    A peer is a connected one, or a connected endpoint. It is in this process if its endpoint is bound here. A socket
    without peers waits for the first, which may come from another process, unless all its endpoints are inproc.
    """

    def __init__(self) -> None:
        self._bound: set[str] = set()

    def abandon_undeliverable(self, engines: Iterable[Engine]) -> None:
        """Makes sockets give up messages that only this process could receive.

        What was bound at an earlier call counts as bound. Daemon threads may still use the sockets.
        """
        found = list(engines)
        for engine in found:
            self._bound.update(map(without_path, engine.endpoints.bound))
        reached = [_bound_names(peer) for engine in found for peer in engine.endpoints.reached]
        for engine in found:
            if self._is_alone(engine, reached):
                engine.give_up(_REASON)

    def _is_alone(self, engine: Engine, reached: list[set[str]]) -> bool:
        dialled = engine.endpoints.dialled
        accepted = list(map(without_path, engine.accepted))
        if not dialled and not accepted:
            names = engine.endpoints.names
            return bool(names) and all(map(is_local, names))
        return all(is_local(peer[0]) or not self._bound.isdisjoint(_bound_names(peer)) for peer in dialled) and all(
            is_local(endpoint) or accepted.count(endpoint) == sum(endpoint in names for names in reached)
            for endpoint in set(accepted)
        )


def abandon_inproc(engines: Iterable[Engine]) -> None:
    """Makes the sockets of a context that ends give up messages that only its other sockets could receive."""
    inproc_only = LocalPeers()
    for engine in engines:
        if inproc_only._is_alone(engine, []):
            engine.give_up(_CONTEXT_REASON)


def _bound_names(peer: Iterable[str]) -> set[str]:
    """Returns endpoints: if one of them is bound here, a connection to *peer* ends here."""
    return {endpoint for address in peer for endpoint in bindings_of(address)}
