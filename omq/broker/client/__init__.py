"""The clients of a broker over ZMTP: the calls and the protocol of both twins, and the connection of each."""
