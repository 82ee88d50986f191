"""Dispatch through Kafka, measured on Apache Kafka itself."""
