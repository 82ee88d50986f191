"""`shardwheel serve`: one node of a cluster."""

from server.app import Node
from server.cli.running import run_loop, run_node, say, stop_signals
from server.cli.version import installed_version
from server.config import NodeConfig
from server.observe.logging import configure_logging


def serve(config: NodeConfig) -> None:
    """Serve until SIGTERM or SIGINT. Raises `CommandFailed` if the node cannot start."""
    configure_logging(config.log_format, config.log_level, node=config.node)
    run_loop(_serve(config))


async def _serve(config: NodeConfig) -> None:
    def started(node: Node) -> None:
        say(
            f"shardwheel {installed_version()}: node {config.node!r} serves gRPC on {node.address}, "
            f"HTTP on {node.http.address or 'no port'}, coordinator {config.coordinator}"
        )

    async with stop_signals() as asked:
        await run_node(config, asked, started=started)
