"""What a connection is asked about itself."""

CURRENT_SCHEMA = "select current_schema()"

# Whatever a borrower left on a connection: not for the next one. Prepared statements stay, since they have no
# data; and what they do is done as whoever runs them.
RESET = """
reset session authorization; reset role; reset all; close all; unlisten *; discard temp;
select pg_advisory_unlock_all()
"""

REVISION = "select max(version_num) from holdfast_version"
