"""Server parts that broker, pzq and gobyd share."""
