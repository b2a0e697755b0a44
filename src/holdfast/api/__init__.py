"""JSON over any ledger: who asks, what may be asked, and how it is answered. SQL only in queries.py."""
