"""A broker's topics behind Spark: read from any offset, again and again, and written once."""
