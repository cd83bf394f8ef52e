"""What a device tells about itself, as the monitor socket and the HTTP door give it."""

from __future__ import annotations

from typing import TypedDict


class Figures(TypedDict):
    """One look at a device. Those in `ORIGINAL` are the original's, in its order.

    Attributes:
        messages: That it holds, in flight or not: stored, and not settled; others' replicas count, too.
        own_messages: Those of them that its own producers have sent: without replicas of other nodes' messages.
        messages_inflight: That consumers have.
        db_size: Bytes of the store's files.
        inflight_db_size: Bytes of the bodies in flight.
        syncs: How often the store waited for the disk.
        expired_messages: Deliveries that were not acknowledged in time.
        dead_letters: That it holds.
        producers: That are connected.
        consumers: That are connected.
        stored: Messages that were stored.
        stored_bytes: Bytes of their bodies.
        repeated: Messages that had been stored before.
        refused: Messages that were refused.
        refused_acks: Acknowledgements that count for nothing.
        delivered: Deliveries.
        redelivered: Those that were not a message's first.
        acknowledged: Messages that consumers are done with.
        returned: Deliveries that came back at once: by the consumer's wish, or its end.
        dead_lettered: Messages that have become dead letters.
        damaged: Messages that could not be read any more.
        full: There is no room on the disk.
        replicas: Messages of other nodes that it keeps: the rest of `messages`.
        recovered: Messages of its own that it has got back from other nodes; they count among `own_messages`.
        nodes: Of the cluster; 1 without one.
        nodes_alive: That were heard lately, this one among them.
        failed: Why the store takes nothing more; `None` as long as it does.
        findings: What opening the store has found.
    """

    messages: int
    own_messages: int
    messages_inflight: int
    db_size: int
    inflight_db_size: int
    syncs: int
    expired_messages: int
    dead_letters: int
    producers: int
    consumers: int
    stored: int
    stored_bytes: int
    repeated: int
    refused: int
    refused_acks: int
    delivered: int
    redelivered: int
    acknowledged: int
    returned: int
    dead_lettered: int
    damaged: int
    replicas: int
    recovered: int
    nodes: int
    nodes_alive: int
    full: bool
    failed: str | None
    findings: list[str]


ORIGINAL = ("messages", "messages_inflight", "db_size", "inflight_db_size", "syncs", "expired_messages")


def as_text(figures: Figures) -> str:
    """As the original says it: a line each, and those of the cluster where there is one."""
    values: dict[str, object] = {**figures}
    names = ORIGINAL if figures["nodes"] == 1 else (*ORIGINAL, "own_messages", "replicas", "nodes", "nodes_alive")
    return "".join(f"{name}: {values[name]}\n" for name in names)
