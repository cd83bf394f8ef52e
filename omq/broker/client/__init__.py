"""The clients of a broker over ZMTP: what both twins know, without I/O, and how each of them waits."""
