"""Builds the documentation site in build/site, and runs the code blocks of the pages and the example programs.

A warning is an error, such as a link to a page or heading that does not exist.
"""

from __future__ import annotations

import sys

from tests.tools.processes import ROOT, call, default_jobs, exit_status, parser_for, split_arguments

#: What runs the code blocks and the examples.
TESTS = (
    "tests/system/broker/sexp/test_sexp_page.py",
    "tests/system/broker/test_client_page.py",
    "tests/system/broker/test_tutorial.py",
    "tests/system/spark/test_tutorial.py",
    "tests/system/test_readme.py",
    "tests/system/test_secure_page.py",
    "tests/unit/examples",
)


def build(builder: str) -> int:
    """Runs a builder of Sphinx, and returns its exit status."""
    output = ROOT / "build" / ("site" if builder == "html" else builder)
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--doctree-dir", ROOT / "build" / "doctrees"]
    return call([sys.executable, "-m", "sphinx", "--builder", builder, *options, ROOT / "docs", output])


def main() -> int:
    """Runs the command line."""
    own, args = split_arguments()
    parser = parser_for(__doc__)
    parser.add_argument(
        "--external", action="store_true", help="also check links to other hosts; nothing else runs then"
    )
    parser.add_argument("--no-tests", action="store_true", help="only build the site")
    options = parser.parse_args(own)
    status = build("html") or (build("linkcheck") if options.external else 0)
    if not status:
        print(f"the site is in {ROOT / 'build' / 'site' / 'index.html'}", flush=True)
    if not status and not options.external and not options.no_tests:
        status = call([sys.executable, "-m", "pytest", "-q", "-n", str(default_jobs()), *TESTS, *args])
    return exit_status(status)


if __name__ == "__main__":
    sys.exit(main())
