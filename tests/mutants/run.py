"""Put each known defect into a copy of the source, and show that the test named in its patch fails.

A patch begins with the lines `Caught by: tests/…::test_name` and what is wrong; a diff of `src` follows.
Several tests, separated by spaces, are run together: one of them must fail, and all must pass without the
defect. Arguments limit the run to patches whose name contains one of them. `--table` prints the table of
README.md and runs nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MARK = "Caught by: "
AT_ONCE = 3
SECONDS = 600  # for the tests of one patch
FAILED = 1  # what pytest exits with when tests ran and failed


@dataclass(frozen=True)
class Mutant:
    name: str
    tests: tuple[str, ...]
    defect: str
    file: Path

    @classmethod
    def read(cls, file: Path) -> Mutant:
        """Read the two lines at the head of a patch."""
        caught, defect, *_ = file.read_text().split("\n", 2)
        if not caught.startswith(MARK):
            sys.exit(f"{file.name}: must begin with {MARK!r} and a test")
        return cls(file.stem, tuple(caught.removeprefix(MARK).split()), defect, file)


def pytest(tests: tuple[str, ...], src: Path) -> subprocess.CompletedProcess[str]:
    """Run tests against a copy of the source."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "PYTHONPATH": str(src)}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS)


def trouble_with(mutant: Mutant) -> str | None:
    """Run the tests of a patch with its defect; return what is wrong if they do not find it."""
    with tempfile.TemporaryDirectory(prefix="holdfast-mutant-") as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        applied = subprocess.run(
            ["git", "apply", "--unidiff-zero", str(mutant.file)], cwd=folder, capture_output=True, text=True
        )
        if applied.returncode:
            return f"the patch does not apply: {applied.stderr.strip()}"
        try:
            ran = pytest(mutant.tests, Path(folder) / "src")
        except subprocess.TimeoutExpired:
            return f"no answer within {SECONDS} s"
    if ran.returncode == FAILED:
        return None
    return "not caught" if ran.returncode == 0 else f"the tests did not run:\n{ran.stdout[-2000:]}"


def table(mutants: list[Mutant]) -> str:
    """Return the table of README.md."""
    rows = [f"| {one.name} | {one.defect} | {'<br>'.join(one.tests)} |" for one in mutants]
    return "\n".join(["| mutant | defect | caught by |", "|---|---|---|", *rows])


def main() -> int:
    """Run the patches that the arguments name; return the exit code."""
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    mutants = [Mutant.read(file) for file in sorted(HERE.glob("*.patch"))]
    mutants = [one for one in mutants if not wanted or any(part in one.name for part in wanted)]
    if "--table" in sys.argv:
        print(table(mutants))
        return 0
    every = tuple(dict.fromkeys(test for one in mutants for test in one.tests))
    sound = pytest(("-n", str(AT_ONCE), *every), ROOT / "src")
    if sound.returncode:
        print(f"without any defect:\n{sound.stdout[-4000:]}")
        return 1
    survivors = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for one, trouble in zip(mutants, pool.map(trouble_with, mutants), strict=True):
            print(f"{one.name}: {trouble or 'caught'}", flush=True)
            survivors += trouble is not None
    print(f"{len(mutants) - survivors} of {len(mutants)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
