"""Runs the tests against the oldest PostgreSQL that is supported, from Debian's package postgresql-15.

usage: python tests/oldest.py [pytest arguments]
"""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import make_home

BIN = Path(os.environ.get("OLDEST_POSTGRES_BIN", "/usr/lib/postgresql/15/bin"))
# Pages cost what they cost our embedded server, so that plans differ by the version alone.
OPTIONS = (
    "-c fsync=off -c full_page_writes=off -c max_connections=300 -c timezone=UTC -c listen_addresses="
    " -c random_page_cost=1.1"
)


def main() -> int:
    if not (BIN / "initdb").exists():
        sys.exit(f"no PostgreSQL 15 in {BIN}: apt-get install postgresql-15")
    folder = make_home()
    user = pwd.getpwnam("postgres").pw_uid if os.geteuid() == 0 else None
    if user is not None:
        os.chown(folder, user, -1)
    run = {"user": user, "cwd": folder, "check": True, "stdout": subprocess.DEVNULL}
    data = folder / "data"
    try:
        initdb = [BIN / "initdb", "-D", data, "-U", "holdfast", "--auth=trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(initdb, **run)
        control = [BIN / "pg_ctl", "-D", data, "-w", "-l", folder / "log"]
        subprocess.run([*control, "-o", f"{OPTIONS} -c unix_socket_directories={folder}", "start"], **run)
        try:
            subprocess.run([BIN / "createdb", "-h", folder, "-U", "holdfast", "holdfast"], **run)
            url = f"postgresql://holdfast@/holdfast?host={folder}"
            env = {**os.environ, "_HOLDFAST_TEST_SERVER": url}
            return subprocess.run([sys.executable, "-m", "pytest", *sys.argv[1:]], env=env).returncode
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
