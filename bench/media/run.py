"""Pictures and copies, measured in turns beside sharp and boto3; the figures are medians.

`python -m bench.run --suite media`, or this module alone: `python -m bench.media.run [images|sync] [REPETITIONS]`.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.services.s3 import S3
from tests.services.server import ServerFailed, ServerMissing

from bench.checks import Check
from bench.measure import ROOT, CannotRun
from bench.media.memory import peak_memory
from bench.media.photo import make_photo
from bench.media.picture import bars
from yamchi.media.presets import Presets

OURS, USUAL, BEST = "Yamchi", "sharp, Promise.all", "sharp, one decode"
BOTO3 = "boto3, one by one"
IMAGES = int(os.environ.get("BENCH_IMAGES", "60"))
IN_FLIGHT = 5
"""As many pictures at once as the queue has; what Yamchi's children do not work on waits. So many more are made than counted."""
PICTURES, VARIANTS, OBJECT_BYTES = int(os.environ.get("BENCH_OBJECTS", "1000")) // 5, 5, 100_000
KIND = "company_photo"

Rates = dict[str, float]
"""By contender and figure: `images Yamchi`, `memory Yamchi`, `bytes Yamchi`, `sync Yamchi`."""


def main(what: str = "all", repetitions: str = "3") -> None:
    rates = measure(int(repetitions), what)
    print(table(rates), "", *checks(rates), sep="\n")


def measure(repetitions: int, what: str = "all") -> Rates:
    """Pictures and objects a second, megabytes of memory, and bytes, by who made or sent them."""
    wanted = [one for name, one in (("images", _images), ("sync", _sync)) if what in (name, "all")]
    samples: dict[str, list[float]] = defaultdict(list)
    for turn in range(repetitions):
        # Beside the project, not in /tmp, which may be memory: what is flushed must reach a disk.
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as folder:
            for one in wanted:
                try:
                    for name, figure in one(Path(folder), turn):
                        samples[name].append(figure)
                        _say(f"{name:28} {figure:>12,.2f}")
                except CannotRun as error:
                    _say(f"can't run: {error}")
    return {name: statistics.median(figures) for name, figures in samples.items()}


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  media     {text}", file=sys.stderr, flush=True)


# ── Pictures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _images(folder: Path, turn: int) -> Iterator[tuple[str, float]]:
    """Forth and back, so that nobody is always measured right after the same one."""
    photo = folder / "photo.jpg"
    make_photo(photo)
    contenders: Mapping[str, Callable[[], list[str]]] = {
        USUAL: lambda: _sharp("usual", photo, folder / "usual"),
        OURS: lambda: [
            sys.executable,
            "-m",
            "bench.media.yamchi_images",
            *map(str, (photo, IMAGES, IN_FLIGHT)),
        ],
        BEST: lambda: _sharp("best", photo, folder / "best"),
    }
    for name in sorted(contenders, reverse=turn % 2 == 1):
        said, memory = _run(contenders[name](), _environment(folder / "home"))
        yield f"images {name}", said["rate"]
        yield f"memory {name}", memory
        yield f"bytes {name}", said["bytes"]


def _sharp(way: str, photo: Path, folder: Path) -> list[str]:
    node, script = shutil.which("node"), ROOT / "bench" / "node" / "sharp_images.js"
    if node is None or not (script.parent / "node_modules" / "sharp").exists():
        raise CannotRun("sharp is not installed: npm ci --prefix bench/node")
    folder.mkdir()
    preset = Presets(folder).get(KIND)
    sizes = [
        {**size.model_dump(include={"name", "width", "height"}), "effort": preset.effort_of(size, "webp")}
        for size in preset.sizes
    ]
    return [node, str(script), way, *map(str, (photo, IMAGES, folder, json.dumps(sizes), IN_FLIGHT))]


def _run(command: list[str], environment: Mapping[str, str]) -> tuple[dict[str, float], float]:
    """What a contender printed, and the most megabytes that it and its children had at once."""
    with (
        subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
        ) as process,
        peak_memory(process.pid) as peak,
    ):
        said, _ = process.communicate()
    if process.returncode:
        raise CannotRun(f"{command[1]} ended with {process.returncode}")
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found, peak.megabytes


def _environment(home: Path, **more: str) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    settings = {
        "YAMCHI_HOME": str(home),
        "QUEUE_URL": "sqlite:///var/jobs.db",
        "QUEUE_FALLBACK": "off",
        "PLUGINS": "media",
        "LOG_LEVEL": "warning",
        "PYTHONPATH": str(ROOT),
    }
    return {**settings, **more}


# ── Copies ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sync(folder: Path, _turn: int) -> Iterator[tuple[str, float]]:
    try:
        server = S3()
        server.start()
    except (ServerMissing, ServerFailed) as error:
        raise CannotRun(str(error)) from error
    try:
        settings = {name.upper(): value for name, value in server.settings.items()}
        home = folder / "sync"
        own = [str(number) for number in (PICTURES, VARIANTS, OBJECT_BYTES)]
        said, _ = _run(
            [sys.executable, "-m", "bench.media.yamchi_sync", *own], _environment(home, **settings)
        )
        yield f"sync {OURS}", said["rate"]
        files = home / "public" / "uploads" / KIND
        command = [sys.executable, "-m", "bench.media.boto3_sync", str(files), "boto3"]
        said, _ = _run(command, _environment(home, **settings))
        yield f"sync {BOTO3}", said["rate"]
    finally:
        server.discard()


# ── For people ────────────────────────────────────────────────────────────────────────────────────────────────────


def rows(rates: Mapping[str, float]) -> list[list[str]]:
    header = [
        "5 WebP variants of a 12-megapixel JPEG",
        "images/s",
        "peak MB",
        "KB of all variants",
        "ours/theirs",
    ]
    return [header, *(_row(name, rates) for name in (OURS, USUAL, BEST) if f"images {name}" in rates)]


def _row(name: str, rates: Mapping[str, float]) -> list[str]:
    rate = rates[f"images {name}"]
    ratio = f"{rates[f'images {OURS}'] / rate:.2f}" if f"images {OURS}" in rates else "—"
    return [
        name,
        f"{rate:.2f}",
        f"{rates[f'memory {name}']:.0f}",
        f"{rates[f'bytes {name}'] / 1000:.0f}",
        ratio,
    ]


def sync_rows(rates: Mapping[str, float]) -> list[list[str]]:
    header = [f"{PICTURES * VARIANTS:,} objects of {OBJECT_BYTES // 1000} KB to S3", "objects/s"]
    found = [(name, rates.get(f"sync {name}")) for name in (OURS, BOTO3)]
    return [header, *([name, f"{rate:,.0f}"] for name, rate in found if rate is not None)]


def table(rates: Mapping[str, float]) -> str:
    lines = ["  ".join(f"{cell:<38}" if place == 0 else f"{cell:>18}" for place, cell in enumerate(row))
             for row in (*rows(rates), [""], *sync_rows(rates))]  # fmt: skip
    return "\n".join(["", "Media", *lines])


def picture(rates: Mapping[str, float]) -> str:
    images = [(name, rates[f"images {name}"]) for name in (OURS, USUAL, BEST) if f"images {name}" in rates]
    memory = [(name, rates[f"memory {name}"]) for name in (OURS, USUAL, BEST) if f"memory {name}" in rates]
    objects = [(name, rates[f"sync {name}"]) for name in (OURS, BOTO3) if f"sync {name}" in rates]
    return bars(
        (
            ("Pictures a second: 5 WebP variants of a 12-megapixel JPEG", images, "{:.2f}"),
            ("Most memory at once, megabytes (less is better)", memory, "{:.0f}"),
            ("Objects of 100 KB to S3 a second", objects, "{:,.0f}"),
        ),
        OURS,
    )


def markdown(rates: Mapping[str, float]) -> str:
    return "\n\n".join(_markdown(each) for each in (rows(rates), sync_rows(rates)) if len(each) > 1)


def _markdown(found: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in found]
    return "\n".join([lines[0], "|" + "|".join(["---", *["---:"] * (len(found[0]) - 1)]) + "|", *lines[1:]])


def checks(rates: Mapping[str, float]) -> list[Check]:
    def against(what: str, figure: str, peer: str, factor: float, *, at_most: bool = False) -> Check:
        ours, theirs = rates.get(f"{figure} {OURS}"), rates.get(f"{figure} {peer}")
        return Check(f"media: {what}", ours, theirs, factor, at_most=at_most)

    return [
        against("images a second / sharp's usual way", "images", USUAL, 1.5),
        against("bytes of the variants / sharp's usual way", "bytes", USUAL, 1.03, at_most=True),
        against("bytes of the variants / sharp's usual way", "bytes", USUAL, 0.97),
        against("images a second / sharp's best, same effort", "images", BEST, 1.0),
        against("peak memory / sharp's usual way", "memory", USUAL, 1.0, at_most=True),
        against("peak memory / sharp's best", "memory", BEST, 1.0, at_most=True),
        against("objects to S3 a second / boto3 one by one", "sync", BOTO3, 2.0),
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
