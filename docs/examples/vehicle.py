"""A simulated vehicle on a Goby bus: it dives in circles until a process asks it to end.

`python docs/examples/vehicle.py SOCKET_NAME` joins the bus of `omq gobyd --socket-name SOCKET_NAME`, and ends with its
standard input.
"""

import math
import sys
import time

from child_processes import end_with_input
from navigation_pb2 import Navigation
from omq.goby import Application


class Vehicle(Application):
    """Publishes a navigation solution ten times a second, and its status every second."""

    name = "vehicle"
    frequency = 10.0
    count = 0

    def loop(self) -> None:
        """Publishes the next navigation solution."""
        angle = self.count / self.frequency / 5
        self.publish(
            "nav",
            Navigation(
                time=time.time_ns() // 1000,
                lat=41.52 + 0.0002 * math.sin(angle),
                lon=-70.67 + 0.0003 * math.cos(angle),
                depth=10 - 10 * math.cos(angle / 3),
                heading=-math.degrees(angle) % 360,
                speed=1.5 + 0.2 * math.sin(angle * 3),
            ),
        )
        self.count += 1
        if self.count % self.frequency == 0:
            self.publish("status", {"battery": 26.0 - self.count / 1000, "published": self.count})

    def finalize(self) -> None:
        """Publishes the last status, which has no battery."""
        self.publish("status", {"published": self.count})


if __name__ == "__main__":
    end_with_input()
    sys.exit(Vehicle(socket_name=sys.argv[1]).run())
