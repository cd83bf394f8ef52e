"""What a broker needs beyond omq itself."""


def missing_extra(missing: ModuleNotFoundError) -> ImportError:
    """The error that names the extra which brings a module."""
    return ImportError(f"the broker needs {missing.name}: pip install 'omq-zmtp[broker]'", name=missing.name)
