from worker_sdk import Context, Worker

worker = Worker()


@worker.handler("email.send")
def send_email(email: dict[str, str], ctx: Context) -> str:
    if "@" not in email["to"]:
        raise ValueError(f"{email['to']} is no address")
    return f"sent to {email['to']}"
