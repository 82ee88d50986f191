from worker import send_email, worker

job = send_email.submit({"to": "you@example.com"})
print(worker.client.wait(job.job_id).result_json())
