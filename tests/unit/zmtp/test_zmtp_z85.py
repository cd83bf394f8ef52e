import pytest

from omq.errors import UsageError
from omq.zmtp import z85

# RFC 32, Test Case; the keys of RFC 26's test server as libzmq's manual prints them.
HELLO = bytes.fromhex("864FD26FB559F75B")
KEY = bytes.fromhex("8E0BDD697628B91D8F245587EE95C5B04D48963F79259877B49CD9063AEAD3B7")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (HELLO, b"HelloWorld"),
        (KEY, b"JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"),
        (b"", b""),
        (bytes(4), b"00000"),
        (b"\xff" * 4, b"%nSc0"),
        (b"\x00\x00\x00\x54", b"0000#"),
    ],
    ids=["the RFC's", "a CURVE key", "empty", "lowest", "highest", "last character"],
)
def test_both_ways(data, text):
    assert z85.encode(data) == text
    assert z85.decode(text) == data
    assert z85.decode(text.decode("ascii")) == data


@pytest.mark.parametrize("size", [1, 2, 3, 5, 31, 42])
def test_encode_refuses_a_length_that_is_no_multiple_of_4(size):
    with pytest.raises(UsageError, match=f"not {size} "):
        z85.encode(bytes(size))


@pytest.mark.parametrize(
    "text",
    [b"0", b"01234567", b"0" * 39, b"0" * 41, "0000é", "ééé"],
    ids=["one", "eight", "39", "41", "five characters, six bytes", "three characters, six bytes"],
)
def test_decode_refuses_a_length_that_is_no_multiple_of_5(text):
    with pytest.raises(UsageError, match="multiple of 5"):
        z85.decode(text)


@pytest.mark.parametrize("text", [b"#####", b"%nSc1", b"00000%nSc1"], ids=["highest", "one too much", "second group"])
def test_decode_refuses_more_than_32_bits(text):
    with pytest.raises(UsageError, match="32 bits"):
        z85.decode(text)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (b"####\x04", 4),
        (b'0000"', 4),
        (b" 0000", 0),
        (b"00~00", 2),
        (b"00\\00", 2),
        (b"00000\x80\xff\x0000", 5),
        ("aé00", 1),
        ("a\ud800\x00", 1),
    ],
    ids=["control", "quote", "blank", "tilde", "backslash", "high bytes", "not ascii", "lone surrogate"],
)
def test_decode_refuses_a_character_outside_the_alphabet(text, position):
    with pytest.raises(UsageError, match=f"character {position} "):
        z85.decode(text)


def test_no_error_repeats_the_text():
    secret = b"JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh"
    for text in (secret, secret + b"~", b"#####" + secret + b"6"):
        with pytest.raises(UsageError) as caught:
            z85.decode(text)
        assert not any(text[at : at + 5].decode() in str(caught.value) for at in range(len(text) - 4))
