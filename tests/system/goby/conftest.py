"""The bus that tests of the commands have to themselves."""

from tests.unit.goby.conftest import bus_options

__all__ = ["bus_options"]
