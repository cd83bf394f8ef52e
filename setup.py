"""Builds the Cython core, and its stubs. Everything else about the distribution stands in pyproject.toml.

Switches, all read from the environment (set to 1):

OMQ_DEBUG      invariants are checked, allocation and lifetime counters are kept
OMQ_COVERAGE   line tracing in the compiled modules, where they have the GIL (`make coverage`)
OMQ_SANITIZE   AddressSanitizer and UndefinedBehaviorSanitizer
OMQ_FUZZ       the same, and coverage for libFuzzer: with clang (`make fuzz`)
OMQ_RACES      ThreadSanitizer
OMQ_ANNOTATE   an HTML page a module, with the Python interactions marked
OMQ_QUICK      compiled without optimization, for a build that is only tried
OMQ_NO_CORE    without the compiled modules, which `build_ext --inplace` makes later (`make` in a clone)
"""

import os
import re
import runpy
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

compile_args = ["-O3", "-g0", "-fno-strict-aliasing", "-fvisibility=hidden", "-Wall"]
compile_args.append("-Werror=implicit-function-declaration")
link_args: list[str] = []
if sanitize or races:
    flags = ["-fsanitize=thread"] if races else ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    compile_args = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-strict-aliasing", *flags]
    link_args = flags
if (debug or coverage) and not (sanitize or races):
    compile_args[:2] = ["-O1", "-g"]  # it is built for one run
if switch("OMQ_QUICK"):
    compile_args[0] = "-O0"
if fuzz:
    os.environ.update(CC="clang", LDSHARED="clang -shared")
    compile_args += ["-fsanitize=fuzzer-no-link"]
    link_args = []  # the runtime is atheris's, and is there before
macros = [("OMQ_DEBUG", str(int(debug)))]
if coverage:
    # Not CYTHON_TRACE_NOGIL: what runs without the GIL would take it, with mutexes held, in threads that never do.
    macros.append(("CYTHON_TRACE", "1"))
    compile_args.append("-w")  # of what tracing adds

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


def without_traces(code: str) -> str:
    """The C of a module without the traces that must not be, so that coverage.py does not count those lines.

    Lines without the GIL are never traced. The socket's lock is one because no Python code runs in the midst of it.
    """
    code = re.sub(r"(?m)^ *__Pyx_TraceLine\(\d+,\d+,1,.*\n", "", code)
    lock = re.compile(r"^static [^\n;]*__pyx_f_3omq_5_core_4lock_[^\n;]*\{\n.*?^\}", re.MULTILINE | re.DOTALL)
    return lock.sub(lambda found: re.sub(r"(?m)^ *__Pyx_Trace(Line|StartFunc)\(.*\n", "", found[0]), code)


# A source archive, and the questions that pip asks before it builds one, need no C.
if sys.argv[1:2] in (["egg_info"], ["dist_info"], ["sdist"]):
    modules = extensions
elif switch("OMQ_NO_CORE"):
    modules = []
else:
    modules = cythonize(
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
            "annotation_typing": False,  # annotations are for the stubs
        },
    )
    runpy.run_path("omq/_core/stubs.py")["write_stubs"](Path("omq/_core"))
if coverage:
    for source in Path("omq/_core").rglob("*.c"):
        source.write_text(without_traces(source.read_text()))

setup(
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    packages=[*find_packages(include=["omq", "omq.*"]), "pyspark_omq"],
    # Spark looks for data sources in the top-level modules whose names begin like this one's.
    package_dir={"pyspark_omq": "omq/spark/top/pyspark_omq"},
    ext_modules=modules,
)
