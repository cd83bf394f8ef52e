from hypothesis import example, given
from hypothesis import strategies as st

from omq.errors import UsageError
from omq.zmtp import z85
from tests.support.hypothesis_profiles import examples

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


@examples(50)
@given(st.binary(max_size=64).map(lambda data: data[: len(data) // 4 * 4]))
def test_data_come_back(data):
    text = z85.encode(data)
    assert len(text) == len(data) // 4 * 5
    assert set(text.decode()) <= set(ALPHABET)
    assert z85.decode(text) == data


@examples(100)
@given(st.text(ALPHABET, max_size=40) | st.binary(max_size=40) | st.text(max_size=40))
@example("#####")
@example("%nSc0")
@example("%nSc1")
def test_a_text_has_one_meaning_or_none(text):
    try:
        data = z85.decode(text)
    except UsageError:
        return
    assert z85.encode(data) == (text.encode() if isinstance(text, str) else text)
