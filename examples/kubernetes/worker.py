"""The worker that runs in the pods of deployment.yaml."""

from worker_sdk import Context, Worker

worker = Worker()


@worker.handler("email.send", max_concurrency=10)
async def send_email(email: dict[str, str], ctx: Context) -> str:
    print(f"sending to {email['to']}, try {ctx.attempt}")
    return "sent"
