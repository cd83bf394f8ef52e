"""The broker's page for people (`/`), for programs (`/topics.json`), Prometheus (`/metrics`) and load balancers (`/healthz`)."""
