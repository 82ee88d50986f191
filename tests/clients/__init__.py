"""The example clients in other languages: each has to pass the checklist for workers, and to live through the end of a
node of a real cluster. They are built and started by the commands of their README.

SHARDWHEEL_CI_LANGUAGES names the languages that have to run, with commas between; what fails to build then fails the
tests. If it is not set, those run whose tools are on this machine. The others are skipped, with the reason.
`python -m tests.clients` prints the languages that can run here: it fetches their packages.
"""
