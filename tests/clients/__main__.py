"""`python -m tests.clients` prints the languages whose clients can be tested here, with commas between."""

from tests.clients.languages import available

if __name__ == "__main__":
    print(",".join(available()))
