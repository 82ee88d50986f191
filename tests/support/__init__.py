"""Parts shared by the tests: servers that they start, values that they make, ways to wait for an event."""
