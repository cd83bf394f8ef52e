"""The broker over HTTP: a page (`/`), JSON (`/topics.json`), Prometheus' metrics (`/metrics`) and `/healthz`."""
