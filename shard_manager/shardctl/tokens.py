"""`shardctl tokens`: who may do what."""

from datetime import timedelta
from typing import Annotated

import typer

from shard_manager.shardctl.command import Cli, command, group
from shard_manager.shardctl.job_view import instant_text
from shard_manager.shardctl.layout import Column, Line, Table
from shard_manager.shardctl.message_json import message_to_json
from shard_manager.shardctl.option_types import DURATION
from shardwheel.v1.admin_service_pb2 import CreateTokenRequest, ListTokensRequest, RevokeTokenRequest, Token

app = group("Say who may do what, by tokens and certificates.")


@command(app, "create")
async def create(
    cli: Cli,
    *,
    holder: Annotated[
        str, typer.Argument(metavar="HOLDER", help="Who will hold it. A second one may replace the first.")
    ],
    scope: Annotated[
        list[str],
        typer.Option(
            metavar="NAMESPACE:RIGHT,…",
            help='May be repeated. Rights: submit, work, read, admin (all of them); the namespace "*" is every one '
            "and the cluster.",
        ),
    ],
    lifetime: Annotated[
        timedelta | None, typer.Option(**DURATION, help="How long it is valid. [default: until it is revoked]")
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Give the rights to client certificates of this SAN or CN, instead of to a token."
        ),
    ] = None,
) -> None:
    """Give rights to a new token and print it, this once. The first one ends open access for good."""
    request = CreateTokenRequest(holder=holder, scopes=scope, certificate=certificate or "")
    if lifetime is not None:
        request.lifetime.FromTimedelta(lifetime)
    async with cli.connect() as connection:
        response = await connection.call(connection.admin.CreateToken, request)
    line = response.secret or f"certificates of {certificate} have these rights from now on"
    cli.output.emit(message_to_json(response), Line(line))


@command(app, "list")
async def list_(cli: Cli) -> None:
    """List the tokens that are not revoked."""
    async with cli.connect() as connection:
        response = await connection.call(connection.admin.ListTokens, ListTokensRequest())
    columns = (
        Column("ID", right=True),
        Column("HOLDER", minimum=10),
        Column("SCOPES", minimum=12),
        Column("CERTIFICATE", minimum=8),
        Column("CREATED"),
        Column("EXPIRES"),
        Column("BY", minimum=6),
    )
    data = {"tokens": [message_to_json(token) for token in response.tokens]}
    cli.output.emit(data, Table(columns, [_row(token) for token in response.tokens], empty="no tokens"))


@command(app, "revoke")
async def revoke(
    cli: Cli, *, token_id: Annotated[int, typer.Argument(metavar="ID", help="As `tokens list` shows it.")]
) -> None:
    """Revoke a token for good: within seconds it is of no use on any node, and calls under way with it end."""
    async with cli.connect() as connection:
        token = await connection.call(connection.admin.RevokeToken, RevokeTokenRequest(id=token_id))
    cli.output.emit(message_to_json(token), Line(f"token {token.id} of {token.holder} is revoked"))


def _row(token: Token) -> tuple[str, ...]:
    return (
        str(token.id),
        token.holder,
        " ".join(token.scopes),
        token.certificate or "-",
        instant_text(token, "created_at"),
        instant_text(token, "expires_at") if token.HasField("expires_at") else "-",
        token.created_by or "-",
    )
