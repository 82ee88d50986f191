from worker_sdk import Context, Worker

worker = Worker()


@worker.handler("email.send", max_concurrency=20)
async def send_email(email: dict[str, str], ctx: Context) -> str:
    print(f"sending to {email['to']}, try {ctx.attempt}")
    return "sent"
