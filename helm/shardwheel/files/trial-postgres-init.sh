#!/bin/sh
# Gives Shardwheel a role and a database of its own: nodes are no superusers, and put settings on their role.
set -eu
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\getenv password SHARDWHEEL_PASSWORD
CREATE ROLE shardwheel LOGIN PASSWORD :'password';
CREATE DATABASE shardwheel OWNER shardwheel;
SQL
