"""The SQL of the command line."""

from typing import LiteralString

# What another key has sealed than the present one.
SEALED_OTHERWISE: LiteralString = """
select count(*)
from connections
where token_key_id is distinct from %(key_id)s
    and (access_token_ciphertext is not null or refresh_token_ciphertext is not null)
"""
