"""What the processes of the scenario `kafka` have in common."""

HANDLER = "bench.kafka"
