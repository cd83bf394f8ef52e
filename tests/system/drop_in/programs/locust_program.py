"""Users that read pages, half of which are missing, until each one has read `LIMIT` pages."""

import os

from locust import HttpUser, constant, task

LIMIT = int(os.environ["LIMIT"])


class Reader(HttpUser):
    wait_time = constant(0.01)
    count = 0

    @task
    def read(self):
        if self.count < LIMIT:
            self.client.get(("/there", "/missing")[self.count % 2])
            self.count += 1
