"""Fuzzes the parsers under sanitizers: everything that a peer can send before it is trusted, and after.

With clang the core is built for libFuzzer with sanitizers, and atheris brings their runtime. In the first half
coverage of Python and of the core guides the fuzzer, in the second half that of the core alone, which is much faster.
Without clang, Python guides it in the usual build; then inputs are mutated at random in a build with gcc's sanitizers.
Findings go to `build`, the number of inputs of each parser to `build/fuzz-count.json`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.tools.build_variant import Variant
from tests.tools.environment import install
from tests.tools.processes import ROOT, check, exit_status, gcc_library, parser_for
from tests.tools.sanitize import environment

BUILD = ROOT / "build"
FOUND = BUILD / "found"
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
COMMON = ("-timeout=5", "-rss_limit_mb=2048", "-verbosity=1", f"-artifact_prefix={BUILD}/")
GUIDED = (
    "-max_len=1024",
    "-detect_leaks=0",
    "-trace_malloc=0",
    "-malloc_limit_mb=0",
    "-entropic_scale_per_exec_time=1",
)
#: Much of AddressSanitizer's default work at each allocation explains a finding, and does not find it. A finding is run
#: again without these options.
FAST_ASAN = {
    "detect_leaks": 0,
    "malloc_context_size": 1,
    "max_malloc_fill_size": 0,
    "quarantine_size_mb": 1,
    "thread_local_quarantine_size_kb": 64,
}


def clang_error() -> str:
    """Returns why clang cannot build with sanitizers, empty if it can."""
    command = ["clang", "-fsanitize=address,undefined", "-xc", "-o", str(BUILD / "probe"), "-"]
    try:
        probe = subprocess.run(command, input="int main(void){return 0;}", capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return "" if probe.returncode == 0 else probe.stderr


def fuzz_guided(seconds: int) -> int:
    """Fuzzes the core that clang built for libFuzzer."""
    variant = Variant("fuzz", "OMQ_FUZZ")
    variant.build()
    site = subprocess.run(
        [sys.executable, "-c", "import atheris; print(atheris.path())"], capture_output=True, text=True
    )
    env = {
        "FUZZ_COUNT": str(BUILD / "fuzz-count.json"),
        "PYTHONMALLOC": "malloc",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "LD_PRELOAD": f"{site.stdout.strip()}/asan_with_fuzzer.so {gcc_library('libstdc++.so.6')}",
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in FAST_ASAN.items()),
    }
    command = ("tests/fuzz/fuzz_zmtp.py", str(FOUND), str(CORPUS), f"-max_total_time={seconds}", *COMMON, *GUIDED)
    for guide in ("all", "core"):
        status = variant.python(*command, env={**env, "FUZZ_GUIDE": guide})
        if status:
            return status
    print("inputs for each parser:", (BUILD / "fuzz-count.json").read_text(), sep="\n")
    return 0


def fuzz_unguided(seconds: int) -> int:
    """Fuzzes with guidance of Python only, then at random under gcc's sanitizers."""
    fuzzer = ["tests/fuzz/fuzz_zmtp.py", str(FOUND), str(CORPUS), f"-max_total_time={seconds}", *COMMON]
    check([sys.executable, *fuzzer], env={"PYTHONPATH": "."})
    env = environment()
    variant = Variant("sanitize", "OMQ_SANITIZE")
    variant.build()
    return variant.python("tests/fuzz/mutate.py", "tests/fuzz/corpus", str(seconds), env=env)


def main() -> int:
    """Runs the command line."""
    parser = parser_for(__doc__)
    parser.epilog = None
    parser.add_argument("--seconds", type=int, default=60, help="how long it fuzzes (default: %(default)s)")
    options = parser.parse_args()
    install(Path(sys.executable), ["atheris>=3"])
    FOUND.mkdir(parents=True, exist_ok=True)
    half = (options.seconds + 1) // 2
    error = clang_error()
    if not error:
        return exit_status(fuzz_guided(half))
    print(error, file=sys.stderr)
    advice = "apt-get install clang libclang-rt-dev"
    print(f"no clang with sanitizers here ({advice}): the core is fuzzed without guidance", file=sys.stderr, flush=True)
    return exit_status(fuzz_unguided(half))


if __name__ == "__main__":
    sys.exit(main())
