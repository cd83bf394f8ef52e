"""The parts of a server that broker, pzq and gobyd share."""
