"""Memory that is reused, private and shared."""

import errno
import os
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="!! omq.spark IS NOT TESTED: pip install 'omq-zmtp[spark]'")

from omq.spark.live.shared_memory import SharedBlock, SharedMemory, mapped  # noqa: E402
from omq.spark.memory import Memory  # noqa: E402

VIEWS = {
    "an Arrow buffer": lambda block: pa.py_buffer(block),
    "a slice of one": lambda block: pa.py_buffer(block).slice(5, 10),
    "an Arrow array": lambda block: pa.Array.from_buffers(pa.uint8(), 10, [None, pa.py_buffer(block)]),
    "a memoryview": memoryview,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_block_is_free_exactly_while_nobody_has_its_memory(view: Any) -> None:
    memory = Memory()
    block = memory.take(8192)
    names = [block] * 3
    assert memory.take(8192) is block, "those who know its name have none of its memory"
    block[:5] = b"hello"
    seen = view(block)
    other = memory.take(8192)
    assert other is not block
    del names, block
    assert memory.take(8192) is other
    views = [seen, view(other)]
    assert memory.take(8192) is not other
    del seen, views
    first = memory.take(8192)
    assert first[:5] == b"hello", "the pages are the same"
    assert first is not other


def test_a_large_block_serves_small_wants_and_is_not_kept_beside_smaller_ones() -> None:
    memory = Memory()
    small = memory.take(4096)
    assert memory.take(100) is small
    large = memory.take(1 << 20)
    assert memory.take(1 << 20) is not large


def test_another_process_sees_what_is_written_and_cannot_write() -> None:
    memory = SharedMemory()
    block = memory.take(8192)
    assert isinstance(block, SharedBlock)
    block[:5] = b"hello"
    seen = mapped(os.dup(block.descriptor), 8192)
    assert seen[:5] == b"hello"
    block[:5] = b"there"
    assert seen[:5] == b"there"
    with pytest.raises(TypeError):
        seen[0] = 1


def test_a_shared_block_is_free_while_nobody_has_its_memory_and_gives_its_descriptor_back() -> None:
    memory = SharedMemory(most=2)
    blocks = [memory.take(4096), None]
    view = pa.py_buffer(blocks[0])
    blocks[1] = memory.take(4096)
    assert blocks[1] is not blocks[0]
    del view
    assert memory.take(4096) is blocks[0]
    descriptors = [block.descriptor for block in blocks if isinstance(block, SharedBlock)]
    memory.trim()
    del blocks
    assert os.fstat(descriptors[0]).st_size == 4096
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[1])


def test_without_a_descriptor_a_block_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none)
    memory = SharedMemory()
    block = memory.take(8192)
    assert not isinstance(block, SharedBlock)
    block[:5] = b"hello"
    view = memoryview(block)
    assert memory.take(8192) is not block
    del view
    assert memory.take(8192) is block
