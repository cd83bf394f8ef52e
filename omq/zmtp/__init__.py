"""ZMTP 3.1 (RFC 37) without I/O: takes received bytes; returns bytes to send and facts about the peer."""
