"""An order and its job in one transaction, with Django: what a view or a model's save would do."""

import os
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.db import connection, models, transaction

from worker_sdk import Client

url = urlsplit(os.environ["APP_DATABASE"])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path[1:],
            "USER": url.username,
            "PASSWORD": url.password,
            "HOST": url.hostname,
            "PORT": url.port,
        }
    }
)
django.setup()
client = Client()


class Order(models.Model):
    number = models.IntegerField(primary_key=True)
    job_id = models.BigIntegerField()

    class Meta:
        app_label = "shop"
        db_table = "orders"


def place(number: int) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            job = client.submit_in(cursor, "order.ship", {"order": number}, dedupe_key=f"ship/{number}")
        Order.objects.create(number=number, job_id=job.job_id)
        transaction.on_commit(lambda: client.nudge(job.job_id))


with connection.schema_editor() as editor:
    if "orders" not in connection.introspection.table_names():
        editor.create_model(Order)
place(3)
connection.close()
client.close()
