"""The comparison with pyzmq's own tests: the page must list what differs, and nothing else."""

import pytest

from tests.tools.pyzmq_tests import Results, listed_tests, unlisted

THEIRS = {"test_a.py::one", "test_a.py::two[x]", "test_b.py::Kind::three"}


@pytest.mark.parametrize(
    ("ours", "listed", "missing", "needless"),
    [
        (THEIRS, [], [], []),
        (THEIRS, ["test_c.py"], [], []),
        (THEIRS, ["test_b.py"], [], ["test_b.py"]),
        (THEIRS - {"test_a.py::two[x]"}, ["test_a.py::two"], [], []),
        (THEIRS - {"test_b.py::Kind::three"}, ["test_b.py"], [], []),
        (set(), ["test_a.py::one", "test_b.py::Kind"], ["test_a.py::two[x]"], []),
    ],
)
def test_unlisted_finds_both_kinds(ours: set[str], listed: list[str], missing: list[str], needless: list[str]) -> None:
    assert unlisted(Results(passed=THEIRS), Results(passed=ours), listed) == (missing, needless)


def test_the_page_has_a_table_that_the_tool_reads() -> None:
    assert listed_tests() == ["test_cython.py", "test_cffi_backend.py"]
