"""What a connection is asked about itself."""

CURRENT_SCHEMA = "select current_schema()"
