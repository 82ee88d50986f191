-- expand. How the due jobs of a handler reach its workers: over their streams (0) or through a Kafka topic (1).
--
-- A job that was published is "running" under the lease of its handler's topic until a consumer starts it: its worker_id
-- is the negative number of the handler, for which there is no row in workers, and its timeout_at says when it is
-- published again. Then it belongs to the consumer's own lease, like any other.
ALTER TABLE handlers ADD COLUMN dispatch smallint NOT NULL DEFAULT 0 CHECK (dispatch IN (0, 1));
ALTER TABLE handlers ADD COLUMN queue_timeout_ms bigint NOT NULL DEFAULT 300000 CHECK (queue_timeout_ms > 0);
ALTER TABLE handlers ADD COLUMN max_unfinished integer NOT NULL DEFAULT 10000 CHECK (max_unfinished > 0);
