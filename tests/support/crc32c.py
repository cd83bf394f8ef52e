"""CRC-32C from its definition (RFC 3720, 12.1), to hold the core's against: a byte at a time, by a table made here."""

#: The polynomial 0x1EDC6F41, its bits reversed.
_POLYNOMIAL = 0x82F63B78


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]


def crc32c(data: bytes, start: int = 0) -> int:
    """The checksum of `data`, or of what `start` is the checksum of with `data` behind it."""
    value = start ^ 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF
