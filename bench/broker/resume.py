"""How names resume: one store that is filled once, and its broker as each row wants to find it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.broker.filling import check_room, fill, needed
from bench.broker.plan import TOPICS, Load, Row
from bench.broker.player import PATIENCE, Player
from bench.broker.progress import say
from bench.broker.services import Running, fresh_directory, serving_from
from bench.measure import Sample


class Resumes:
    """The store, and whoever serves it now.

    Args:
        load: The load.
        place: Where its directory is made.
    """

    def __init__(self, load: Load, place: Path) -> None:
        self._load, self._place = load, place
        self._each = max(2, load.kept // TOPICS)
        self._away = self._each // 2  # where the names are
        self._held = ExitStack()
        self._serving = ExitStack()
        self._directory: Path | None = None
        self._server: Running | None = None

    def close(self) -> None:
        """Ends the server, and removes the store."""
        self._serving.close()
        self._held.close()
        self._directory = self._server = None

    def run(self, row: Row, driver: str) -> Sample:
        """Measures names one by one, then all at once: a restarted broker is restarted for either."""
        server = self._found(row, driver)
        opened: list[float] = []
        told: dict[str, list[float]] = {}
        for order in ("one_by_one", "at_once"):
            if row.options["state"] != "running":
                server = self._restarted(row, server, opened)
            with Player(row, driver, server, self._load) as player:
                player.hear("ready", PATIENCE)
                told[order] = player.does(order, self._away)
        names = told["one_by_one"]
        figures = {"worst": max(names), "middle": median(names), "all": told["at_once"][0]}
        sample = {key: 1e3 * seconds for key, seconds in figures.items()}
        sample["memory"] = server.memory() / (1 << 20)
        return sample | ({"opens": median(opened)} if opened else {})

    def _found(self, row: Row, driver: str) -> Running:
        if self._server is not None:
            return self._server
        check_room(row, needed(self._load.kept, self._load.size), self._place)
        self._directory = self._held.enter_context(fresh_directory(row.service, self._place))
        server = self._serve(row)
        with Player(row, driver, server, self._load) as player:
            player.hear("ready", PATIENCE)
            player.does("create")
            fill(player, row.label, self._each * TOPICS, self._each)
            say("names are left where they are to resume")
            player.does("away", self._away)
        time.sleep(1.5)  # what is flushed each second has been
        return server

    def _serve(self, row: Row) -> Running:
        assert self._directory is not None
        self._server = self._serving.enter_context(serving_from(self._directory, row.service, row.settings))
        return self._server

    def _restarted(self, row: Row, server: Running, opened: list[float]) -> Running:
        if row.options["state"] == "restarted":
            server.end_orderly()
        self._serving.close()  # SIGKILL
        started = time.monotonic()
        server = self._serve(row)
        opened.append(time.monotonic() - started)
        return server
