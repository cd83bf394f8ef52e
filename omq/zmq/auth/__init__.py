"""Authentication of peers: a handler of ZAP requests (RFC 27), and files of CURVE keys."""

from __future__ import annotations

from omq.zmq.auth.base import CURVE_ALLOW_ANY, Authenticator
from omq.zmq.auth.certs import create_certificates, load_certificate, load_certificates

__all__ = ["Authenticator", "CURVE_ALLOW_ANY", "create_certificates", "load_certificate", "load_certificates"]
