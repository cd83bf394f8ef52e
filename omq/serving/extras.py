"""Optional dependencies."""

from __future__ import annotations

from typing import Final

__all__ = ["missing_extra"]

#: The extras of packages that only some features of a system need.
EXTRAS: Final = {"nats": "replicated", "nkeys": "replicated"}
#: Packages whose modules have another name.
PACKAGES: Final = {"google": "protobuf", "bson": "pymongo", "nats": "nats-py", "opentelemetry": "opentelemetry-api"}


def missing_extra(subject: str, missing: ImportError, extra: str) -> ImportError:
    """Returns an error that names the extra to install.

    Args:
        subject: The part of omq that needs it.
        missing: The error of the import.
        extra: The extra of `omq-zmtp` that contains the package, unless `EXTRAS` has it.
    """
    module = (missing.name or str(missing)).partition(".")[0]
    package = PACKAGES.get(module, module)
    return ImportError(
        f"{subject} needs {package}: pip install 'omq-zmtp[{EXTRAS.get(module, extra)}]'", name=missing.name
    )
