"""An engine of somebody else's: a package offers it by the scheme of its URL, and QUEUE_URL chooses it."""

from pathlib import Path

import pytest

from yamchi import Yamchi
from yamchi.errors import ConfigurationError
from yamchi.settings import Settings

MODULE = """
from yamchi.queues.engines.memory import MemoryEngine

class Counted(MemoryEngine):
    type = "counted"

def make(url, around):
    assert url == "counted://anywhere"
    return Counted(around.clock)
"""


async def test_a_package_offers_an_engine_by_its_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path, default_queue_url="counted://anywhere", queue_fallback="off")
    with pytest.raises(ConfigurationError, match="counted://… is not known"):
        Yamchi(settings)
    (tmp_path / "shop_engines.py").write_text(MODULE)
    metadata = tmp_path / "shop_engines-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-engines\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[yamchi.engines]\ncounted = shop_engines:make\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with Yamchi(settings) as app:
        app.define("hello")
        await app.queue("hello").add("you")
        assert await app.queue("hello").stats() == {
            "waiting": 1,
            "active": 0,
            "delayed": 0,
            "completed": 0,
            "failed": 0,
            "type": "counted",
        }
