"""`python -m omq`: the command `omq`."""

from omq.cli.program import run

if __name__ == "__main__":
    run()
