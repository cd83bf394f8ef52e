"""Log records over a PUB: see `omq.zmq.log.handlers`."""
