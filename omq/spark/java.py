"""Checks for a Java that Spark can run on. Also a program, which exits with status 2 without one."""

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
    """Returns instructions to install Java; empty if there is a Java that Spark can run on."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    problem = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
    if found:
        run = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
        version = re.search(r'version "(\d+)', run.stderr)
        if run.returncode == 0 and version and int(version[1]) >= OLDEST:
            return ""
        problem = f"{found} -version printed: {(run.stderr or 'nothing').splitlines()[0]}"
    return f"Spark needs a JDK, {OLDEST} or newer; {problem}.\n{_advice()}"


def _advice() -> str:
    release = Path("/etc/os-release")
    system = release.read_text(encoding="utf-8") if release.exists() else ""
    if not re.search(r"^ID(_LIKE)?=.*(debian|ubuntu)", system, re.MULTILINE):
        return "The package is called java-17-openjdk-headless or similar."
    install = f"apt-get install -y {PACKAGE}"
    if os.geteuid() != 0:
        return f"The package is {PACKAGE}:\n\n    sudo {install}"
    # Container images have no package lists until `apt-get update`.
    return f"The package is {PACKAGE}:\n\n    apt-get update && {install}"


if __name__ == "__main__":
    if instructions := missing():
        print(instructions, file=sys.stderr)
        sys.exit(2)
