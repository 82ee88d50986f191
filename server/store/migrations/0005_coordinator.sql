-- expand. Which coordinator is in charge of the cluster: "postgres", or "zookeeper:" and the path. Null until the first
-- node has started.
ALTER TABLE cluster ADD COLUMN coordinator text;
ALTER TABLE cluster ADD COLUMN coordinator_since timestamptz;
