"""Users that read pages: half of them are missing."""

from locust import HttpUser, constant, task


class Reader(HttpUser):
    wait_time = constant(0.01)

    @task
    def read(self):
        self.client.get("/there")

    @task
    def read_what_is_missing(self):
        self.client.get("/missing")
