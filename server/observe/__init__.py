"""What a node tells about itself: structured logs, Prometheus metrics, traces, health and readiness."""
