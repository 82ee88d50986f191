"""Whether a worker, in any language, keeps to the worker protocol: `python -m tests.conformance -- COMMAND…`.

The command is started as a worker of a small cluster of scripted nodes, which say and do what real nodes say and do
seldom: they break streams, repeat themselves, hand out jobs of shards that they have lost, and fall silent. Each check
belongs to a rule of docs/worker-protocol.md, and judges what the worker sends. The exit code is 0 if all pass.

The worker under test
    finds its nodes in SHARDWHEEL_ADDRESS, and the certificate authority and the token, where they are needed, in
    SHARDWHEEL_CA and SHARDWHEEL_TOKEN. It ends with exit code 0 after SIGTERM, and gives running handlers
    SHARDWHEEL_GRACE seconds before it stops them. It has three handlers, each for two jobs at a time or more:
    `example.echo` returns its payload as it is, `example.sleep` waits for as many seconds as its payload says, a JSON
    number, and can be stopped, and `example.fail` fails.
"""
