"""The store without a disk: for `--memory`, and for the transient topics of the one on disk."""
