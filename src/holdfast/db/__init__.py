"""Where the database is and how we talk to it: settings, the embedded server, the pool, the doorbell's
wire, migrations. May use psycopg, psycopg-pool, SQLAlchemy and Alembic. Never knows what a ledger is.
"""
