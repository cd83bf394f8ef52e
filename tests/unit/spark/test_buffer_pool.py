"""Memory that is reused, private and shared."""

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omq.spark.buffer_pool import BufferPool, SharedBlock, SharedBufferPool, available_bytes, map_block

VIEWS = {
    "an Arrow buffer": lambda block: pa.py_buffer(block),
    "a slice of one": lambda block: pa.py_buffer(block).slice(5, 10),
    "an Arrow array": lambda block: pa.Array.from_buffers(pa.uint8(), 10, [None, pa.py_buffer(block)]),
    "a memoryview": memoryview,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_block_is_free_while_no_buffer_refers_to_it(view: Any) -> None:
    memory = BufferPool()
    block = memory.allocate(8192)
    names = [block] * 3
    assert memory.allocate(8192) is block, "an alias of the block does not hold its memory"
    block[:5] = b"hello"
    seen = view(block)
    other = memory.allocate(8192)
    assert other is not block
    del names, block
    assert memory.allocate(8192) is other
    views = [seen, view(other)]
    assert memory.allocate(8192) is not other
    del seen, views
    first = memory.allocate(8192)
    assert first[:5] == b"hello", "the pages are the same"
    assert first is not other


def test_a_large_block_serves_small_requests_and_is_not_kept_with_smaller_ones() -> None:
    memory = BufferPool()
    small = memory.allocate(4096)
    assert memory.allocate(100) is small
    large = memory.allocate(1 << 20)
    assert memory.allocate(1 << 20) is not large


def test_another_process_sees_what_is_written_and_cannot_write() -> None:
    memory = SharedBufferPool()
    block = memory.allocate(8192)
    assert isinstance(block, SharedBlock)
    block[:5] = b"hello"
    seen = map_block(os.dup(block.descriptor), 8192)
    assert seen[:5] == b"hello"
    block[:5] = b"there"
    assert seen[:5] == b"there"
    with pytest.raises(TypeError):
        seen[0] = 1


def test_a_shared_block_is_free_without_buffers_and_closes_its_descriptor() -> None:
    memory = SharedBufferPool(max_blocks=2)
    blocks = [memory.allocate(4096), None]
    view = pa.py_buffer(blocks[0])
    blocks[1] = memory.allocate(4096)
    assert blocks[1] is not blocks[0]
    del view
    assert memory.allocate(4096) is blocks[0]
    descriptors = [block.descriptor for block in blocks if isinstance(block, SharedBlock)]
    del blocks, memory
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[1])


def test_without_a_descriptor_a_block_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none)
    memory = SharedBufferPool()
    block = memory.allocate(8192)
    assert not isinstance(block, SharedBlock)
    block[:5] = b"hello"
    view = memoryview(block)
    assert memory.allocate(8192) is not block
    del view
    assert memory.allocate(8192) is block


#: The files of a control group of version 1.
FIRST = {"memory.limit_in_bytes": "70", "memory.usage_in_bytes": "7"}


@pytest.mark.parametrize(
    ("groups", "files", "wanted"),
    [
        ("0::/", {}, 8 << 30),
        ("0::/", {"memory.max": "max\n", "memory.current": "5\n"}, 8 << 30),
        ("0::/", {"memory.max": "3000\n", "memory.current": "1000\n"}, 2000),
        ("0::/a/b", {"a/memory.max": "3000\n", "a/memory.current": "1000\n", "a/b/memory.max": "max\n"}, 2000),
        ("0::/a/b", {"a/b/memory.max": "300\n", "a/b/memory.current": "500\n"}, 0),
        (
            "5:cpu:/x\n4:memory:/y\n0::/",
            {"memory/y/memory.limit_in_bytes": "70", "memory/y/memory.usage_in_bytes": "7"},
            63,
        ),
        ("4:memory:/y", {"memory/memory.limit_in_bytes": "70", "memory/memory.usage_in_bytes": "7"}, 63),
    ],
    ids=["no group", "no bound", "a bound", "one above", "used up", "version 1", "version 1 in a container"],
)
def test_available_memory_is_that_of_the_machine_and_the_container(
    groups: str, files: dict[str, str], wanted: int, tmp_path: Path
) -> None:
    everything = {
        "proc/meminfo": f"MemTotal: {16 << 20} kB\nMemAvailable:  {8 << 20} kB\n",
        "proc/self/cgroup": f"{groups}\n",
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }
    for name, text in everything.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == wanted
