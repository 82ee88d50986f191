"""The ways to hand a claimed job to a worker: the bidirectional session stream, and Kafka.

A dispatcher never holds more jobs of a handler than its workers have free slots, and reports every job that it could
not deliver, so that the engine gives it back without counting a try.
"""
