-- expand. Who may do what, and how much of it.

-- kind: 1 bearer token, 2 client certificate. Of a token only its SHA-256 is kept. Revoked rows stay: a database that has
-- ever been given a credential never has open access again. The name is that of the holder, who may have several, as
-- while one replaces another.
CREATE TABLE tokens (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    kind smallint NOT NULL CHECK (kind IN (1, 2)),
    digest bytea UNIQUE CHECK (octet_length(digest) = 32),
    subject text,
    scopes text[] NOT NULL CHECK (cardinality(scopes) BETWEEN 1 AND 100),
    created_by text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    changed_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((kind = 1) = (digest IS NOT NULL)),
    CHECK ((kind = 2) = (subject IS NOT NULL))
);
CREATE UNIQUE INDEX tokens_subject ON tokens (subject) WHERE revoked_at IS NULL;
CREATE INDEX tokens_changed ON tokens (changed_at);

-- The secrets by which nodes show the others that they are of this cluster: the hash of each, new at each start of a
-- node, which writes it again long before it is forgotten.
CREATE TABLE node_keys (
    digest bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
    node text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX node_keys_changed ON node_keys (changed_at);

ALTER TABLE namespaces ADD COLUMN quotas jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN changed_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX namespaces_changed ON namespaces (changed_at);

-- Jobs per second that come through each node, as far as a quota limits them. Lost in a crash, which does no harm.
CREATE UNLOGGED TABLE submit_rates (
    namespace_id integer NOT NULL,
    node text NOT NULL,
    rate double precision NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace_id, node)
) WITH (fillfactor = 50);

-- Whose credential an incarnation has come with: nobody else speaks for it.
ALTER TABLE workers ADD COLUMN identity text NOT NULL DEFAULT '';
