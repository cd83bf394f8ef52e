"""The broker's protocol of S-expressions: readable on the wire, and easily spoken without a library."""
