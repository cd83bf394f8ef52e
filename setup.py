"""Builds the Cython core. Everything else about the distribution stands in pyproject.toml.

Switches, all read from the environment (set to 1):

OMQ_DEBUG      invariants are checked, allocation and lifetime counters are kept
OMQ_COVERAGE   line tracing in the compiled modules
OMQ_SANITIZE   AddressSanitizer and UndefinedBehaviorSanitizer
OMQ_FUZZ       the same, and coverage for libFuzzer: with clang (`make fuzz`)
OMQ_RACES      ThreadSanitizer
OMQ_ANNOTATE   an HTML page a module, with the Python interactions marked
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, find_packages, setup

if sys.platform != "linux":
    sys.exit("omq runs on Linux only: it is built on epoll and eventfd")


def switch(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


debug, coverage, fuzz = switch("OMQ_DEBUG"), switch("OMQ_COVERAGE"), switch("OMQ_FUZZ")
sanitize = switch("OMQ_SANITIZE") or fuzz
races = switch("OMQ_RACES")

compile_args = ["-O3", "-fno-strict-aliasing", "-fvisibility=hidden", "-Wall", "-Werror=implicit-function-declaration"]
link_args: list[str] = []
if sanitize or races:
    flags = ["-fsanitize=thread"] if races else ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    compile_args = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-strict-aliasing", *flags]
    link_args = flags
if debug and not (sanitize or races):
    compile_args[0] = "-O1"  # it is built for one run
if fuzz:
    os.environ.update(CC="clang", LDSHARED="clang -shared")
    compile_args += ["-fsanitize=fuzzer-no-link"]
    link_args = []  # the runtime is atheris's, and is there before
macros = [("OMQ_DEBUG", str(int(debug)))]
if coverage:
    macros.append(("CYTHON_TRACE_NOGIL", "1"))

Options.warning_errors = True
extensions = [
    Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        define_macros=macros,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    for source in sorted(Path("omq/_core").rglob("*.pyx"))
]

setup(
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    packages=[*find_packages(include=["omq", "omq.*"]), "pyspark_omq"],
    # Spark looks for data sources in the top-level modules whose names begin like this one's.
    package_dir={"pyspark_omq": "omq/spark/top/pyspark_omq"},
    ext_modules=cythonize(
        extensions,
        annotate=switch("OMQ_ANNOTATE"),
        nthreads=0 if sanitize or races else (os.cpu_count() or 1),
        compiler_directives={
            "language_level": 3,
            "boundscheck": debug,
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
            "freethreading_compatible": False,
            "linetrace": coverage,
            "embedsignature": False,
        },
    ),
)
