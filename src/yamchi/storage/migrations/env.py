"""Where Alembic starts: migrations run on the connection, and in the transaction, that they are given."""

from alembic import context

given = context.config.attributes
context.configure(connection=given["connection"], version_table=given["version_table"], render_as_batch=True)
context.run_migrations()
