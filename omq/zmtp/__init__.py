"""ZMTP 3.1 (RFC 37) without I/O: bytes go in; bytes to write and facts about the peer come out."""
