"""Errors of the pure core. Each carries its data as attributes; the edges turn them into statuses and exit codes."""


class InvalidInput(ValueError):
    """A value that came from outside cannot be accepted.

    Attributes: `field` is the name under which the sender knows the value, `value` what was sent (as text, cut to a
    readable length), `reason` what is wrong with it and what would be right.
    """

    MAX_VALUE_CHARS = 200

    def __init__(self, field: str, value: object, reason: str) -> None:
        text = value if isinstance(value, str) else str(value)
        if len(text) > self.MAX_VALUE_CHARS:
            text = text[: self.MAX_VALUE_CHARS] + "…"
        super().__init__(f"{field}: {reason} (got {text!r})")
        self.field = field
        self.value = text
        self.reason = reason
