"""How a command ends when it cannot do what it was asked."""


class CommandFailedError(Exception):
    """Ends the command with `exit_code` after writing `lines` to stderr: what went wrong and what to do about it."""

    exit_code = 1

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class RefusedInputError(CommandFailedError):
    """What the user gave cannot be accepted, by this program or by the server."""

    exit_code = 2
