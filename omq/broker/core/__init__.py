"""The core of a broker: its topics and their readers, independent of the servers that clients connect to."""
