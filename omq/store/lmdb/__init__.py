"""The engine on disk: two LMDB environments, each with one thread that writes it, and any number of readers."""
