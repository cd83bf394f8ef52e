"""What holds for all tests: a way of life that is not in the engine's table is a failure, in child processes too."""

import os

os.environ.setdefault("OMQ_STRICT", "1")
