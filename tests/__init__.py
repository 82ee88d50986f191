"""Tests: unit (no I/O), contract (one suite over several implementations), integration, cluster and e2e."""
