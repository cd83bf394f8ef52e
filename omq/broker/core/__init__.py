"""The core of a broker: its topics, and who reads them, whatever door their messages come through."""
