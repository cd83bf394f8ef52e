"""The ZMTP server: what omq's clients, and those of any ZeroMQ library, speak to a broker."""
