"""Where Alembic starts: migrations run on the connection, and in the transaction, that they are given."""

from alembic import context

from yamchi.storage.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True
)
context.run_migrations()
