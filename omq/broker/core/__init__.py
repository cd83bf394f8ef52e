"""The core of a broker: its topics, and who reads them, whatever server their messages come through."""
