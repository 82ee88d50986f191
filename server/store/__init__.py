"""All SQL of the scheduler: the schema with its migrations, and one module of statements per table.

A statement that claims, reaps, fires or cleans up is fenced: it takes the shard row FOR SHARE with the epoch that its
caller holds, and touches nothing if the epoch has moved on. A finish is keyed on (id, open_claim) and exact by itself.
Callers see typed errors, never those of the driver: surely not applied, ownership lost, outcome unknown.
"""
