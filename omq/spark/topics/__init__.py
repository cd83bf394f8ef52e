"""A broker's topics as Spark sources and sinks: replayable reads and exactly-once writes."""
