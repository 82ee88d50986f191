"""`shardwheel demo`: a small cluster of real processes that is hit half-way, and an account of what became of each job.

The model
    One PostgreSQL, a ZooKeeper if there is one to be had, some nodes and some workers run as processes of their own on
    this machine, in a temporary folder that goes away in the end, however the demo ends. This process submits over
    gRPC, kills (-9) what it was asked to kill when half of the burst is done, and counts. A node that is not the only
    one stays dead: the others take its shards over.

    What ran is counted from files, never from the database. Who serves which shard is read from the table of shards,
    the fence that every claim has to pass. Each worker appends a line at each start and each end of
    an execution, and its handler returns only after an fsync that covers its end: a job that the cluster calls
    completed has a line on the disk. A line of a start is in the kernel's hands before anything else happens, so a
    kill of the worker does not lose it.

Phases
    *Quiet*: jobs due one after the other on an idle cluster, submitted ahead; their start lateness is the handler's
    start minus the due time. *Burst*: the rest, as fast as it is taken, a tenth of it due some seconds ahead; before
    the kill of a node, some jobs that run for longer than its shards are without an owner.

The numbers
    `lost`        submitted jobs without a completed execution in the files
    `duplicates`  executions begun beyond one per job, whatever became of them. A killed worker's running jobs have to
                  run again, and count here; the table says whether there were others
    `early`       executions claimed, by the database's clock, or begun before the due time that the submit asked for
    `failed`      jobs that the cluster ended as failed or cancelled
    `jobs_per_s`  jobs of the burst that were due at once and completed, over the time from the first submit of the
                  burst to the kill, or without a kill to the end of the last of them
    `start_ms_p50`, `start_ms_p99`  start lateness in the quiet phase
    `recovered_ms`  from the kill of a node until every shard that it served is served again; from that of a worker to
                  the end of the first execution that was claimed after it
    `moved_shards`  shards of the killed node that other nodes serve now

Not measured: anything across machines. All processes share one machine and one clock.
"""
