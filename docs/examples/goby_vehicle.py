"""A vehicle on a Goby bus: a pilot sends it to a depth, and stops it there.

The vehicle is an `Application`: its `loop` runs ten times a second. The daemon holds all publications until both
programs are ready. Processes of Goby 3 can take either part. Needs `pip install 'omq-zmtp[goby]'`.

Prints:

    dive to 5 m
    0.0 m, 2.0 m, 4.0 m, 5.0 m
    surfaced
"""

import os
import threading
from typing import Any

from omq.goby import Application, Daemon, Portal


class Diver(Application):
    """Publishes its depth, and moves to the commanded one."""

    name = "vehicle"
    frequency = 10.0
    depth = 0.0
    goal = 0.0

    def initialize(self) -> None:
        """Subscribes to commands."""
        self.subscribe("command", dict, self.on_command)

    def on_command(self, command: dict[str, Any]) -> None:
        """Follows a command of the pilot; one without a depth ends the dive."""
        if "depth" in command:
            self.goal = command["depth"]
        else:
            self.publish("nav", {"surfaced": True})
            self.quit()

    def loop(self) -> None:
        """Moves by at most two metres, and publishes the depth."""
        self.publish("nav", {"depth": self.depth})
        self.depth = min(self.depth + 2.0, self.goal)


def main() -> None:
    """Runs the bus, the vehicle and the pilot in one process; each may be a process of its own."""
    platform = f"example_{os.getpid()}"
    with Daemon(platform=platform, required_clients=["vehicle", "pilot"]), Portal("pilot", platform=platform) as pilot:
        vehicle = threading.Thread(target=Diver(platform=platform).run)
        vehicle.start()
        nav = pilot.subscribe("nav", dict)
        pilot.ready()
        pilot.wait_released(timeout=20)
        print("dive to 5 m")
        pilot.publish("command", {"depth": 5.0})
        depths: list[float] = []
        while 5.0 not in depths:
            depth = nav.recv(timeout=20)["depth"]
            if depth not in depths:
                depths.append(depth)
        print(", ".join(f"{depth} m" for depth in depths))
        pilot.publish("command", {"surface": True})
        while "surfaced" not in nav.recv(timeout=20):
            pass
        print("surfaced")
        vehicle.join()


if __name__ == "__main__":
    main()
