"""What the broker shows: a page (`/`), JSON (`/topics.json`), Prometheus' metrics (`/metrics`) and `/healthz`."""
