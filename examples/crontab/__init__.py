"""Runs the commands of crontabs as jobs; see README.md beside this file."""
