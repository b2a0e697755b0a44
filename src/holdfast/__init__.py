"""Durable work on PostgreSQL: your table is the queue."""
