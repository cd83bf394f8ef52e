"""Measures a cluster of brokers next to nats-py on the same servers, and next to a broker without a cluster."""
