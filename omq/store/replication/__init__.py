"""Replicated topics: a journal of writes that several brokers apply to their stores in the same order."""
