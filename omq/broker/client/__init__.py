"""The clients of a broker over ZMTP: the calls and the protocol once for both twins, and the waiting of each."""
