"""The compiled modules."""

from omq.unpatched import refuse_subinterpreter

refuse_subinterpreter()  # before one is loaded: the loader's error would hide the reason
