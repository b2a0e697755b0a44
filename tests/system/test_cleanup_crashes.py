"""A process that is killed at any step of a Cleanup or a UserCleanup: a new job completes what is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import Settings
from holdfast.apps.system import manifest
from holdfast.apps.system.bench import target_lock
from holdfast.apps.system.executors import cleanup, erase
from holdfast.apps.system.parameters import Cleanup, UserCleanup
from holdfast.engine.values import Move
from system.kit import stage
from system.safe import LooseRun
from system.subjects import ANNA, BO, filled, flushed, mentions
from system.test_cleanup import MAKE, OWN, archived

SPAWN = multiprocessing.get_context("spawn")


async def die_at(settings: Settings, folder: Path, what: str, wanted: str) -> None:
    """Does the work of a job, or a job itself, until a step, and is killed there."""

    async def step(name: str) -> None:
        if name == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    if what == "job":
        erase.run = partial(erase.run, step=step)
        async with stage(settings, folder, apps=[OWN]) as staged:
            await staged.drain()
        return
    async with stage(settings, folder, apps=[OWN]) as staged, target_lock(staged.bench, what) as lock:
        assert lock
        run: Any = LooseRun(staged.bench, "UC-loose000", lock)
        if what == "cleanup":
            await cleanup.run(Cleanup(table="own.notes"), run, step)
        else:
            await erase.run(UserCleanup(subject={"org_id": str(ANNA)}, cascade=True), run, step)


def _die(settings: Settings, folder: Path, what: str, wanted: str) -> None:
    import asyncio

    asyncio.run(die_at(settings, folder, what, wanted))


def killed(settings: Settings, folder: Path, what: str, wanted: str) -> None:
    """Runs that in a process of its own, and sees that it was killed and did not end."""
    process = SPAWN.Process(target=_die, args=(settings, folder, what, wanted))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL, f"it never came to {wanted}"


@pytest.mark.parametrize("step", ["dropped", "removed", "announced"])
async def test_kill_at_each_step_of_cleanup_then_a_new_job_leaves_no_stray_file(
    settings: Settings, tmp_path: Path, step: str
) -> None:
    """Y-28: wherever it was cut off."""
    async with stage(settings, tmp_path, apps=[OWN]) as staged:
        await staged.do(MAKE)
        await archived(staged)
        killed(settings, tmp_path, "cleanup", step)
        done = await staged.run("cleanup", {"table": "own.notes"})
        assert done.state == "completed"
        assert await staged.one("select to_regclass('own.notes')") is None
        assert await staged.bench.archive.list() == []
        assert await manifest.tables(staged.bench.archive) == []


@pytest.mark.parametrize(
    "step",
    [
        "settled",
        "cancelled",
        "without job",
        "without connections",
        "erased",
        "made",
        "replaced",
        "rewritten",
        "others forgotten",
        "archive forgotten",
    ],
)
async def test_kill_at_each_step_of_user_cleanup_then_a_new_job_completes_it(
    settings: Settings, tmp_path: Path, step: str
) -> None:
    """Y-30: what is gone stays gone, and nothing of others' goes."""
    async with stage(settings, tmp_path, apps=[OWN]) as staged:
        await filled(staged)
        await flushed(staged)
        others = await mentions(staged, BO)
        killed(settings, tmp_path, "erase", step)
        done = await staged.run("user_cleanup", {"subject": {"org_id": str(ANNA)}, "cascade": True})
        assert done.state == "completed", done.columns["message"]
        assert await mentions(staged, ANNA) == {}
        assert await mentions(staged, BO) == others


@pytest.mark.parametrize("step", ["others forgotten", "archive forgotten", "finishing", "forgotten"])
async def test_kill_of_a_worker_that_is_about_to_forget_whom_it_erases_then_the_same_job_completes(
    settings: Settings, tmp_path: Path, step: str
) -> None:
    """Y-30: its row is given back and knows whom; or it has ended, and does not."""
    async with stage(settings, tmp_path, apps=[OWN]) as staged:
        await filled(staged)
        made = await staged.create("user_cleanup", {"subject": {"org_id": str(ANNA)}, "cascade": True})
        killed(settings, tmp_path, "job", step)
        job = await staged.job(made)
        assert job.state == ("completed" if step == "forgotten" else "running")
        async with staged.app.database.connection() as conn:
            held = await staged.jobs.held_by(conn, [str(job.owner)])
            await staged.jobs.move(conn, [Move(verb="release", claim=claim) for claim in held])
        await staged.drain()
        assert (await staged.job(made)).state == "completed"
        assert await mentions(staged, ANNA) == {}
