"""A work queue of the broker: jobs are acknowledged, retried with a delay, and end as dead letters.

The broker runs in this program; `omq broker` runs it as a server. Needs `pip install 'omq-zmtp[broker]'`.

Prints:

    resize 1.png: finished
    resize 2.png: attempt 1 failed
    resize 2.png: finished
    resize broken.png: attempt 1 failed
    resize broken.png: attempt 2 failed
    dead letter: resize broken.png, max-deliveries after 2 deliveries
"""

import tempfile

import omq.broker

FAILURES = {b"resize 2.png": 1, b"resize broken.png": 99}


def work(delivery: omq.broker.Delivery) -> None:
    """Does a job.

    Raises:
        ValueError: It has failed.
    """
    if delivery.deliveries <= FAILURES.get(delivery.body, 0):
        raise ValueError(f"attempt {delivery.deliveries} failed")


def main() -> None:
    """Publishes three jobs, of which one succeeds only at the second attempt, and one never."""
    with (
        tempfile.TemporaryDirectory() as folder,
        omq.broker.Server(folder, bind="tcp://127.0.0.1:*") as server,
        omq.broker.Client(server.endpoints["zmtp"], timeout=20) as client,
    ):
        client.create("jobs.dead", persistence="weak")
        client.create(
            "jobs",
            delivery="round-robin",
            persistence="weak",
            max_deliveries=2,
            retry_delay=0.05,  # seconds
            dead_letter="jobs.dead",
        )
        lines = []
        with client.subscribe("jobs.dead") as dead, client.consume("jobs", ack_timeout=30.0, credit=1) as jobs:
            client.publish_many("jobs", [b"resize 1.png", b"resize 2.png", b"resize broken.png"])
            for _ in range(5):
                job = jobs.recv(timeout=20)
                try:
                    work(job)
                except ValueError as error:
                    lines.append(f"{job.body.decode()}: {error}")
                    job.nack()
                else:
                    lines.append(f"{job.body.decode()}: finished")
                    job.ack()
            letter = dead.recv(timeout=20)
        print(*sorted(lines), sep="\n")
        headers = {name: value.decode() for name, value in letter.headers.items()}
        print(
            f"dead letter: {letter.body.decode()},",
            f"{headers['omq-dead-reason']} after {headers['omq-dead-deliveries']} deliveries",
        )


if __name__ == "__main__":
    main()
