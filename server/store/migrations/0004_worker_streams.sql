-- expand. What the nodes know together of a worker's streams, and the rule that a name has one live incarnation.

-- When a stream of the worker last broke, unless a node with another stream has spoken for the worker since.
ALTER TABLE workers ADD COLUMN doubted_at timestamptz;
-- When the worker was given up because every stream had broken and it came back to no node.
ALTER TABLE workers ADD COLUMN lost_at timestamptz;

UPDATE workers w SET ended_at = now(), end_reason = 'superseded', lease_until = LEAST(w.lease_until, now())
WHERE w.ended_at IS NULL AND EXISTS (
    SELECT FROM workers n
    WHERE n.namespace_id = w.namespace_id AND n.name = w.name AND n.ended_at IS NULL
      AND (n.lease_until, n.id) > (w.lease_until, w.id));

DROP INDEX workers_live;
CREATE UNIQUE INDEX workers_live ON workers (namespace_id, name) WHERE ended_at IS NULL;
