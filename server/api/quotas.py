"""Quotas in messages."""

import math
from collections.abc import Mapping
from typing import Final

from server.api.validation import Problems
from server.domain.quota import Quotas
from shardwheel.v1 import admin_service_pb2 as pb

MAX_RATE: Final = 1_000_000.0
_MAX_COUNT: Final = 1 << 50


def check_quotas(problems: Problems, field: str, quotas: pb.Quotas) -> None:
    """Check quotas that are to be set; 0 is no limit."""
    for descriptor, value in quotas.ListFields():
        name = f"{field}.{descriptor.name}"
        if descriptor.name == "submit_rate":
            if not (math.isfinite(value) and (value == 0 or 0.01 <= value <= MAX_RATE)):
                problems.add(name, value, f"has to be from 0.01 to {MAX_RATE:.0f} jobs per second, or 0 for no limit")
        elif not 0 <= value <= _MAX_COUNT:
            problems.add(name, value, f"has to be from 1 to {_MAX_COUNT}, or 0 for no limit")


def changed_quotas(quotas: pb.Quotas) -> Mapping[str, float | None]:
    """Return the quotas that are set in a checked message, None for one that is to be taken away."""
    return {descriptor.name: value or None for descriptor, value in quotas.ListFields()}


def quotas_of(quotas: pb.Quotas) -> Quotas:
    """Return the quotas of a checked message for a new namespace."""
    return Quotas(
        pending_jobs=quotas.pending_jobs or None,
        pending_bytes=quotas.pending_bytes or None,
        submit_rate=quotas.submit_rate or None,
        schedules=quotas.schedules or None,
    )


def quotas_message(quotas: Quotas) -> pb.Quotas:
    """Return quotas as a message; those without a limit are unset."""
    return pb.Quotas(
        pending_jobs=quotas.pending_jobs,
        pending_bytes=quotas.pending_bytes,
        submit_rate=quotas.submit_rate,
        schedules=quotas.schedules,
    )
