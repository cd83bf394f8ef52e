"""The documentation site builds without a warning: its links, headings and docstrings are as they must be."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.optional_packages import require

ROOT = Path(__file__).parents[2]
IMAGE = re.compile(r'<img [^>]*src="([^"]+)"')


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_builds_without_a_warning() -> None:
    for module in ("furo", "myst_parser", "sphinx", "sphinxcontrib.mermaid"):
        require(module)
    command = [sys.executable, "-m", "tests.tools.build_site", "--no-tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stderr
    site = ROOT / "build" / "site"
    assert (site / "index.html").exists()
    pictures = {(page, source) for page in site.rglob("*.html") for source in IMAGE.findall(page.read_text())}
    assert pictures
    assert [(page, source) for page, source in sorted(pictures) if not (page.parent / source).exists()] == []
