"""`python -m omq`: the command `omq`."""

from omq.cli.main import main

if __name__ == "__main__":
    main(prog_name="omq")
