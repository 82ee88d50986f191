"""Runs with a protection taken out of the real code: the tests that are to notice must turn red."""
