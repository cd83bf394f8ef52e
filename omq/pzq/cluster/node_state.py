"""The file in which a node keeps what it states, next to its store: it is on the disk before it is sent."""

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
#: Bytes that are kept free for it on a disk that is full.
SPARE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class NodeState:
    """The content of the file.

    Attributes:
        store: Which store it was stated of.
        name: What the node is called.
        incarnations: When the directory was started, the last time last.
        replicated: Whether its messages have ever been replicated.
        records: The epoch and the node that has each owner's messages; `None`: nothing was stated yet.
        former: What the node was called before.
        known: The store and the incarnation of each other node that was heard last.
    """

    store: str
    name: str
    incarnations: tuple[int, ...]
    replicated: bool
    records: dict[str, tuple[int, str]] | None
    former: tuple[str, ...] = ()
    known: dict[str, tuple[str, int]] = field(default_factory=dict)


class NodeStateFile:
    """The file.

    Args:
        database: The folder that it is in.
    """

    def __init__(self, database: Path) -> None:
        self._path = database / FILE

    def load(self) -> NodeState | None:
        """Reads what is kept; `None` without the file.

        Raises:
            DamagedError: The file is not a node's.
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
                else {owner: (int(epoch), str(who)) for owner, (epoch, who) in kept["records"].items()},
                former=tuple(map(str, kept.get("former", ()))),
                known={peer: (str(store), int(last)) for peer, (store, last) in kept["known"].items()},
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as wrong:
            raise DamagedError(f"{self._path}: cannot be understood: {wrong}") from None

    def save(self, kept: NodeState) -> None:
        """Keeps this in place of what was kept; returns once it is on the disk.

        Raises:
            OSError: It cannot be written.
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
