"""`python -m worker_sdk module:worker` runs a worker.

`module` is imported from the current folder or the Python path; `worker` is the variable that holds the `Worker`, and
may be left out if it has that name.
"""

import argparse
import importlib
import logging
import os
import sys

from worker_sdk.errors import ApiError, ConfigurationError
from worker_sdk.kafka_settings import read_properties
from worker_sdk.tls import SYSTEM, Tls
from worker_sdk.worker import Worker

EXIT_REFUSED = 2
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def main(arguments: list[str] | None = None) -> int:
    """Run a worker as the command line says; return the exit code: 0 after a drain, 2 for anything refused."""
    parser = argparse.ArgumentParser(prog="python -m worker_sdk", description="Run a worker.")
    parser.add_argument("worker", metavar="MODULE:WORKER", help="where the Worker is, for example jobs:worker")
    parser.add_argument("--address", help="host:port of a node, or several with commas between")
    parser.add_argument("--namespace", help="namespace whose jobs to run")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="brokers for handlers that are dispatched through Kafka")
    parser.add_argument("--kafka-config", metavar="FILE", help="further settings of librdkafka, one name=value a line")
    parser.add_argument("--ca", metavar="FILE", help="authorities of the nodes, in PEM; switches TLS on")
    parser.add_argument("--cert", metavar="FILE", help="certificate of the worker, in PEM, if the nodes ask for one")
    parser.add_argument("--key", metavar="FILE", help="its key")
    parser.add_argument("--token", help="bearer token; SHARDWHEEL_TOKEN or --token-file keep it out of `ps`")
    parser.add_argument("--token-file", metavar="FILE", help="file that holds the token")
    parser.add_argument("--name", help="unique name of this worker; host name and process id by default")
    parser.add_argument("--grace", type=float, metavar="SECONDS", help="time for jobs to finish after SIGTERM; 30")
    parser.add_argument("--health-listen", metavar="HOST:PORT", help="answer /healthz and /readyz there; nowhere")
    parser.add_argument("--log-level", default="INFO", choices=_LEVELS, help="INFO by default")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(message)s")
    try:
        worker = load_worker(options.worker)
        worker.configure(
            name=options.name,
            grace=options.grace,
            health_listen=options.health_listen,
            address=options.address,
            namespace=options.namespace,
            tls=_tls(options.ca, options.cert, options.key),
            token=options.token,
            token_file=options.token_file,
        )
        properties = read_properties(options.kafka_config) if options.kafka_config else None
        worker.configure(kafka=options.kafka, kafka_config=properties)
        print(start_line(worker), flush=True)
        ended = worker.run()
    except (ConfigurationError, ApiError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    if not ended:
        # The attempt of the handler that does not stop was given back, so it must not go on for longer than it has to.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)
    return 0


def _tls(ca: str | None, cert: str | None, key: str | None) -> Tls | None:
    return Tls(ca=ca or SYSTEM, cert=cert, key=key) if ca or cert or key else None


def load_worker(place: str) -> Worker:
    """Import the worker that `module:variable` names. Raises `ConfigurationError` if there is none."""
    module_name, _, variable = place.partition(":")
    variable = variable or "worker"
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # An import that fails inside the module is the module's own error, with its own traceback.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(f"there is no module {module_name!r}; start in the folder that holds it") from error
    worker = getattr(module, variable, None)
    if not isinstance(worker, Worker):
        raise ConfigurationError(f"{module_name!r} has no Worker named {variable!r}; write MODULE:WORKER")
    return worker


def start_line(worker: Worker) -> str:
    """Say in one line what runs and where."""
    handlers = ", ".join(f"{item.name} x{item.max_concurrency}" for item in worker.handlers)
    connection = worker.connection
    return (
        f"worker {worker.name} runs {handlers or 'nothing'} for namespace {connection.namespace}"
        f" at {','.join(connection.addresses)}; Ctrl-C stops"
    )


if __name__ == "__main__":
    sys.exit(main())
