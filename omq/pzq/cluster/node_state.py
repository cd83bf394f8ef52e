"""The file with a node's persistent state, next to its store. It is synced before the state is sent."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from errno import ENOSPC
from pathlib import Path
from typing import Final

from omq.store.errors import DamagedError
from omq.store.lmdb.store_directory import write_durably

FILE: Final = "cluster.json"
#: Bytes of a spare file, which makes room for the state on a full disk.
SPARE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class NodeState:
    """The content of the file.

    Attributes:
        store: The id of the node's store.
        name: The node's name.
        incarnations: The times at which the directory was started, ascending.
        replicated: True if its messages have ever been replicated.
        records: The epoch and the leader of each owner's queue; `None`: the node is unattached.
        former: Earlier names of the node.
        known: The last known store and incarnation of each peer.
    """

    store: str
    name: str
    incarnations: tuple[int, ...]
    replicated: bool
    records: dict[str, tuple[int, str]] | None
    former: tuple[str, ...] = ()
    known: dict[str, tuple[str, int]] = field(default_factory=dict)


class NodeStateFile:
    """Reads and writes the state file.

    Args:
        database: The directory of the file.
    """

    def __init__(self, database: Path) -> None:
        self._path = database / FILE

    def load(self) -> NodeState | None:
        """Reads the state; `None` without a file.

        Raises:
            DamagedError: The file is not a valid state.
        """
        try:
            kept = json.loads(self._path.read_bytes())
            return NodeState(
                store=kept["store"],
                name=kept["name"],
                incarnations=tuple(map(int, kept["incarnations"])),
                replicated=bool(kept["replicated"]),
                records=None
                if kept["records"] is None
                else {owner: (int(epoch), str(node)) for owner, (epoch, node) in kept["records"].items()},
                former=tuple(map(str, kept.get("former", ()))),
                known={peer: (str(store), int(last)) for peer, (store, last) in kept["known"].items()},
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as wrong:
            raise DamagedError(f"{self._path}: not a valid state of a node: {wrong}") from None

    def save(self, kept: NodeState) -> None:
        """Replaces the state; returns once it is on the disk.

        Raises:
            OSError: The file cannot be written.
        """
        text = json.dumps(asdict(kept)).encode()
        spare = self._path.with_suffix(".spare")
        try:
            write_durably(self._path, text)
        except OSError as error:
            if error.errno != ENOSPC or not spare.exists():
                raise
            spare.unlink()
            write_durably(self._path, text)
        if not spare.exists():
            with suppress(OSError):
                spare.write_bytes(bytes(SPARE_BYTES))
