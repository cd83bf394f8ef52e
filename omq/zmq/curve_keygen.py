"""Prints a new key pair for CURVE, or the public key of a secret one, as Z85."""

from __future__ import annotations

import argparse
import json

from omq.zmq.security import curve_keypair, curve_public


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python3 -m zmq.curve_keygen", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--secret", help="the secret key whose public key is printed")
    arguments = parser.parse_args()
    if arguments.secret:
        secret = arguments.secret
        public = curve_public(secret).decode()
    else:
        public, secret = (key.decode() for key in curve_keypair())
    if arguments.json:
        print(json.dumps({"public": public, "secret": secret}, indent=1, sort_keys=True))
    else:
        print(f"== CURVE PUBLIC KEY ==\n{public}\n\n== CURVE SECRET KEY ==\n{secret}")


if __name__ == "__main__":
    main()
