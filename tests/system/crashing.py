"""A backup or a restore as a real process that stops at a step, to be killed: `python crashing.py JSON`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from holdfast import Settings
from system.kit import stage
from system.safe import back_up, bring_back


async def main(told: dict[str, Any]) -> None:
    async def stop(step: str) -> None:
        if step == told["step"]:
            sys.stdout.write(f"at {step}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()

    settings = Settings(database_url=told["database"], profile="test")
    async with stage(settings, Path(told["folder"])) as on:
        if told["work"] == "backup":
            await back_up(on.bench, told["schema"], told["location"], stop)
        else:
            await bring_back(on.bench, told["location"], told["schema"], stop, overwrite=told["overwrite"])


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
