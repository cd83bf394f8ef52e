"""Replicated topics: brokers that share one journal and apply its entries to their own stores."""
