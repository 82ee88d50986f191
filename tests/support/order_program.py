"""An application that commits orders and their jobs together, until it is killed or its connection ends."""

import sys

import psycopg

from worker_sdk import Client


def main(database: str, first: int) -> None:
    """Insert orders from number `first` on; every third transaction is rolled back."""
    with psycopg.connect(database, application_name="orders") as connection, Client("127.0.0.1:1") as client:
        number = first
        while True:
            number += 1
            job = client.submit_in(connection, "order.ship", number)
            connection.execute("INSERT INTO public.orders VALUES (%s, %s)", (number, job.job_id))
            if number % 3:
                connection.commit()
            else:
                connection.rollback()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
