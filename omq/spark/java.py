"""Checks for a Java that Spark can run on. Also a program, which needs only Python and exits with 2 without one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

OLDEST: Final = 17  # the first release that Spark 4 runs on
PACKAGE: Final = "openjdk-17-jre-headless"


def missing() -> str:
    """Returns what to do about Java; empty if there is a Java that Spark can run on."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    said = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
    if found:
        run = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
        number = re.search(r'version "(\d+)', run.stderr)
        if run.returncode == 0 and number and int(number[1]) >= OLDEST:
            return ""
        said = f"{found} says: {(run.stderr or 'nothing').splitlines()[0]}"
    return f"Spark needs a JDK, {OLDEST} or newer; {said}.\n{_advice()}"


def _advice() -> str:
    release = Path("/etc/os-release")
    system = release.read_text(encoding="utf-8") if release.exists() else ""
    if not re.search(r"^ID(_LIKE)?=.*(debian|ubuntu)", system, re.MULTILINE):
        return "The package is called java-17-openjdk-headless or alike."
    install = f"apt-get install -y {PACKAGE}"
    if os.geteuid() != 0:
        return f"The package is {PACKAGE}:\n\n    sudo {install}"
    # A system without package lists, as containers are, has to fetch them first.
    return f"The package is {PACKAGE}:\n\n    apt-get update && {install}"


if __name__ == "__main__":
    if told := missing():
        print(told, file=sys.stderr)
        sys.exit(2)
