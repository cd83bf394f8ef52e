"""The bus that tests of the commands have to themselves."""

from tests.unit.goby.conftest import told

__all__ = ["told"]
