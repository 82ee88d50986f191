"""`python -m shard_manager.shardctl`."""

from shard_manager.shardctl.main import main

main()
