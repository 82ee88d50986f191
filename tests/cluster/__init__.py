"""Clusters of real processes that are broken on purpose, and the check of what they did.

The model
    *Processes* (nodes, workers, PostgreSQL) run on this machine and may be killed, stopped and started at any time. A
    *client* submits, and writes down what was answered. Workers write down what they execute, in files that are on the
    disk before a result can count. A *nemesis* breaks things by a plan that follows from a seed. When all is healed
    and no job is left, the files and the final rows of the database become a *history*, plain data, and pure *checkers*
    say which promise it breaks.

What the checkers believe
    The workers' files say what ran, the client's file what was promised, the journal of the processes who was alive.
    The database is believed for its own clock and for the final state of jobs, never for what ran.

All processes share one machine, and so one wall clock and one monotonic clock.
"""
