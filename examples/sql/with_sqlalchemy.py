"""An order and its job in one transaction, with SQLAlchemy and nothing of Shardwheel's."""

import json
import os

from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int]


SUBMIT = text("SELECT job_id FROM shardwheel.submit('order.ship', CAST(:payload AS jsonb), dedupe_key => :key)")

engine = create_engine(os.environ["APP_DATABASE"].replace("postgresql://", "postgresql+psycopg://"))
Base.metadata.create_all(engine)
with Session(engine) as session, session.begin():
    job_id = session.execute(SUBMIT, {"payload": json.dumps({"order": 2}), "key": "ship/2"}).scalar_one()
    session.add(Order(number=2, job_id=job_id))
engine.dispose()
