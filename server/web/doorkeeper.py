"""Who may see and do what in the dashboard: the port to access control, and what stands for it where there is none."""

from typing import Protocol

from google.protobuf.message import Message


class Doorkeeper(Protocol):
    """Knows the tokens. The rules are those of the gRPC API, by the full name of a method as in
    "/shardwheel.v1.JobService/GetJob"."""

    @property
    def open(self) -> bool:
        """Whether everybody may do everything, so that nobody is asked for a token."""

    async def knows(self, token: str) -> bool:
        """Return whether a token is valid, whatever it allows. Raises an error of the store if that is unknown."""

    async def admit(self, token: str, method: str, request: Message) -> None:
        """Return if the bearer of the token (empty: none) may call a method with this request.

        Raises an `ApiError`, UNAUTHENTICATED or PERMISSION_DENIED, if not.
        """


class OpenDoor:
    """Admits everybody."""

    open = True

    async def knows(self, token: str) -> bool:
        """Any token will do."""
        return True

    async def admit(self, token: str, method: str, request: Message) -> None:
        """Everybody may."""
