"""The HTTP server of the broker: a page (`/`), JSON (`/topics.json`), Prometheus metrics (`/metrics`), `/healthz`."""
