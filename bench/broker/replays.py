"""How a replay is measured."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from bench.broker.filling import PORTIONS, available, check_room, fill, free, needed
from bench.broker.plan import Load, Row
from bench.broker.player import PATIENCE, Player, sampled
from bench.broker.progress import say
from bench.broker.services import Running, serving
from bench.measure import Sample

QUALIFYING = 100_000  # messages that a driver replays to show which one is better


class Replays:
    """Servers that were filled once, and are read again and again.

    Args:
        load: The load.
        place: Where their directories are made.
    """

    def __init__(self, load: Load, place: Path) -> None:
        self._load, self._place = load, place
        self._servers: dict[str, Running] = {}
        self._held = ExitStack()

    def close(self) -> None:
        """Ends the servers, and removes what they keep."""
        self._servers.clear()
        self._held.close()

    def turns(self, rows: tuple[Row, ...]) -> tuple[tuple[Row, ...], ...]:
        """All rows take turns where all servers find room at once, on the disk and, to read them warm, in half of
        the memory. Else one server comes after the other."""
        stores = {_key(row) for row in rows if row.stores}
        if len(stores) * self._needed() < min(free(self._place), available() // 2):
            return (rows,)
        apart: dict[str, list[Row]] = {}
        for row in rows:
            apart.setdefault(_key(row), []).append(row)
        return tuple(map(tuple, apart.values()))

    def run(self, row: Row, driver: str) -> Sample:
        """Reads all of it."""
        return self._read(row, driver, self._load.messages)

    def qualify(self, row: Row, driver: str) -> Sample:
        """Reads the first of it."""
        return self._read(row, driver, min(QUALIFYING, self._load.messages))

    def _read(self, row: Row, driver: str, count: int) -> Sample:
        server = self._filled(row)
        with Player(row, driver, server, self._load) as player:
            player.hear("ready", PATIENCE)
            before = server.busy()
            say(f"{row.label}: {count:,} messages are replayed")
            facts = player.does("replay", count)
            busy = server.busy() - before
        return sampled(count, facts["ended"] - facts["started"], server, busy, facts["busy"])

    def _filled(self, row: Row) -> Running:
        if _key(row) not in self._servers:
            check_room(row, self._needed(), self._place)
            server = self._held.enter_context(serving(row.service, row.settings, self._place))
            if row.stores:
                with Player(row, row.drivers[0], server, self._load) as player:
                    player.hear("ready", PATIENCE)
                    player.does("create")
                    portion = max(self._load.depth, self._load.messages // PORTIONS)
                    fill(player, row.label, self._load.messages, portion)
                time.sleep(1.5)  # what is flushed each second has been
            self._servers[_key(row)] = server
        return self._servers[_key(row)]

    def _needed(self) -> int:
        return needed(self._load.messages, self._load.size)


def _key(row: Row) -> str:
    """What rows share that read from the same server."""
    return f"{row.service} {row.stores} {sorted(row.settings.items())}"
