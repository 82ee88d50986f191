"""`python -m server.embedded.get_zookeeper`: install what an embedded ZooKeeper needs, where that may be."""

import os
import sys

from server.embedded.errors import ZookeeperMissing
from server.embedded.zookeeper_installation import ADDRESS_VARIABLE, ZookeeperInstallation


def main() -> None:
    """Nothing happens if it is there, or if a running server is named; exit code 1 and one line if it cannot be got."""
    if os.environ.get(ADDRESS_VARIABLE):
        return
    try:
        ZookeeperInstallation.install()
    except ZookeeperMissing as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
