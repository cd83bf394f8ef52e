"""Prints the lowest version of each dependency that pyproject.toml allows, as constraints for pip."""

import re
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
# What users install; tools for tests and benchmarks may be new.
wanted = sum((extras[name] for name in ("cli", "broker", "demo", "goby", "spark")), project["dependencies"])
for requirement in wanted:
    if match := re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement):
        print(f"{match[1]}=={match[2]}")
    elif not requirement.startswith("omq-zmtp["):
        raise SystemExit(f"{requirement}: has no lowest version")
