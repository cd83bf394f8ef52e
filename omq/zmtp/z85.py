"""Z85: binary keys as printable text, five characters for four bytes (RFC 32, Formal Specification).

The text may be a secret key, so no error repeats any of it.
"""

from typing import Final

from omq.errors import UsageError

_ALPHABET: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES: Final = {character: value for value, character in enumerate(_ALPHABET)}


def encode(data: bytes) -> bytes:
    """Encodes bytes as Z85.

    Args:
        data: A multiple of 4 bytes.

    Raises:
        UsageError: The length is not a multiple of 4.
    """
    if len(data) % 4:
        raise UsageError(f"data: Z85 encodes a multiple of 4 bytes, not {len(data)} (RFC 32, Formal Specification)")
    text = bytearray()
    for start in range(0, len(data), 4):
        number = int.from_bytes(data[start : start + 4], "big")
        text += bytes(_ALPHABET[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return bytes(text)


def decode(text: bytes | str) -> bytes:
    """Decodes Z85.

    Args:
        text: A multiple of 5 characters.

    Raises:
        UsageError: The length is not a multiple of 5, a character is not of the alphabet, or five of them exceed 32
            bits.
    """
    characters = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(characters) % 5:
        raise UsageError(
            f"text: Z85 has a multiple of 5 characters, not {len(characters)} (RFC 32, Formal Specification)"
        )
    data = bytearray()
    for start in range(0, len(characters), 5):
        number = 0
        for position in range(start, start + 5):
            value = _VALUES.get(characters[position])
            if value is None:
                raise UsageError(f"character {position} of this text is not one of Z85 (RFC 32, Formal Specification)")
            number = number * 85 + value
        if number >= 1 << 32:
            raise UsageError(
                f"characters {start} to {start + 4} of this text exceed the 32 bits that Z85 packs into five"
            )
        data += number.to_bytes(4, "big")
    return bytes(data)
