"""The compiled modules."""

from omq.unpatched import refuse_subinterpreter

refuse_subinterpreter()  # before one is loaded, whose error would not say why
