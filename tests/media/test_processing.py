"""What becomes of a file, good or hostile: the right sizes, nothing but pixels, and one sentence for what can't be used."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.media import pictures
from tests.media.contact_sheet import make_sheet
from yamchi.errors import YamchiError
from yamchi.media.formats import BadFile
from yamchi.media.overlay import Mark
from yamchi.media.presets import Presets, Size, read_presets
from yamchi.media.processing import Made, Task, process
from yamchi.yamlfiles import load

PHOTO = Presets(Path("/nowhere")).get("company_photo")
AVATAR = Presets(Path("/nowhere")).get("user_avatar")


def made_of(content: bytes, folder: Path, **more: object) -> Made:
    source = pictures.write(folder, "source", content)
    fields = {"preset": PHOTO, "max_pixels": 50_000_000, **more}
    return process(Task(source=source, folder=folder, stem="picture", **fields))


def test_a_photo_is_turned_cleaned_and_cut_to_size(tmp_path: Path) -> None:
    made = made_of(pictures.jpeg(4000, 3000, orientation=6), tmp_path)
    assert (made.width, made.height) == (3000, 4000)
    sizes = {one.name: (one.width, one.height) for one in made.variants}
    assert sizes == {
        "w1920": (1920, 2560),
        "w1280": (1280, 1707),
        "w640": (640, 853),
        "w320": (320, 427),
        "thumb": (150, 150),
    }
    for one in made.variants:
        content = (tmp_path / one.file).read_bytes()
        fields = pictures.fields_of(content)
        assert not [name for name in fields if name.startswith(("exif", "xmp", "iptc", "icc", "orientation"))]
        assert b"secret" not in content
        assert b"Spy camera" not in content
        assert one.hash[:12] in one.file
    red, green, blue = pictures.open_any((tmp_path / made.variants[0].file).read_bytes()).getpoint(1900, 10)[
        :3
    ]
    assert red > 180 > 60 > max(green, blue)  # the corner that was left above is now right above
    assert not list(tmp_path.glob("*.part"))
    assert 10 <= len(made.placeholder) // 2 <= 40


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_means_nothing(tmp_path: Path, orientation: int) -> None:
    made = made_of(pictures.jpeg(800, 400, orientation=orientation), tmp_path)
    assert (made.width, made.height) == (800, 400)
    assert (made.variants[0].width, made.variants[0].height) == (800, 400)


@pytest.mark.parametrize(
    ("orientation", "width"), [(1, 800), (2, 800), (3, 800), (4, 800), (5, 400), (6, 400), (7, 400), (8, 400)]
)
def test_every_orientation(tmp_path: Path, orientation: int, width: int) -> None:
    made = made_of(pictures.jpeg(800, 400, orientation=orientation), tmp_path)
    assert made.width == made.variants[0].width == width
    shown = pictures.open_any((tmp_path / made.variants[0].file).read_bytes())
    stored = pictures.open_jpeg(pictures.jpeg(800, 400, orientation=orientation))
    assert (shown - stored.autorot()).abs().avg() < 6


def test_what_is_small_is_not_blown_up(tmp_path: Path) -> None:
    made = made_of(pictures.jpeg(200, 100), tmp_path)
    assert {one.name: one.width for one in made.variants if one.name != "thumb"} == dict.fromkeys(
        ("w1920", "w1280", "w640", "w320"), 200
    )


@pytest.mark.parametrize(
    "content",
    [
        pictures.cmyk(),
        pictures.deep(),
        pictures.png(300, 200, alpha=True),
        pictures.png(1, 400),
        pictures.png(400, 1),
    ],
    ids=["cmyk", "16 bit", "alpha", "one pixel wide", "one pixel high"],
)
def test_strange_but_good(tmp_path: Path, content: bytes) -> None:
    made = made_of(content, tmp_path)
    assert len(made.variants) == 5
    for one in made.variants:
        assert pictures.open_any((tmp_path / one.file).read_bytes()).interpretation == "srgb"


@pytest.mark.parametrize("save", ["jpegsave_buffer", "pngsave_buffer"])
def test_what_is_longer_than_any_webp_is_made_smaller(tmp_path: Path, save: str) -> None:
    long = pictures.open_png(pictures.png(400, 20_000))
    made = made_of(getattr(long, save)(), tmp_path)
    assert (made.width, made.height) == (400, 20_000)
    assert [(one.name, one.height) for one in made.variants[:3]] == [
        ("w1920", 16_383),
        ("w1280", 16_383),
        ("w640", 16_383),
    ]
    for one in made.variants[:4]:
        assert one.width / one.height == pytest.approx(400 / 20_000, rel=0.002)
        shown = pictures.open_any((tmp_path / one.file).read_bytes())
        assert (shown.width, shown.height) == (one.width, one.height)


def test_an_animation_whose_frames_are_longer_than_any_webp(tmp_path: Path) -> None:
    made = made_of(pictures.animation(frames=2, width=40, height=20_000), tmp_path)
    assert {(one.width, one.height) for one in made.variants} == {(33, 16_383), (150, 150)}


def test_an_animation_stays_one(tmp_path: Path) -> None:
    for preset, size in ((PHOTO, (60, 40)), (AVATAR, (96, 96))):
        made = made_of(pictures.animation(), tmp_path, preset=preset)
        assert made.frames == 4
        small = made.variants[-1] if preset is AVATAR else made.variants[0]
        shown = pictures.open_any((tmp_path / small.file).read_bytes())
        assert (shown.get("n-pages"), shown.width, shown.get("page-height")) == (4, *size)


def test_an_animation_is_not_turned(tmp_path: Path) -> None:
    """What its file says of a camera: a browser does not turn it either, and a strip of frames is no picture."""
    made = made_of(pictures.turned_animation(), tmp_path)
    sizes = {(one.name, one.width, one.height) for one in made.variants}
    assert sizes >= {("w1920", 60, 40), ("w320", 60, 40), ("thumb", 150, 150)}
    assert made.placeholder == made_of(pictures.turned_animation(orientation=1), tmp_path).placeholder


def test_the_first_frame_of_an_animation(tmp_path: Path) -> None:
    still = PHOTO.model_copy(update={"animated": False})
    made = made_of(pictures.animation(frames=4, width=2_000, height=1_000), tmp_path, preset=still)
    assert (made.frames, made.width, made.height) == (1, 2_000, 1_000)
    assert {(one.width, one.height) for one in made.variants} >= {(640, 320), (1_920, 960)}


@pytest.mark.parametrize("focus", [None, (0.0, 0.5)])
@pytest.mark.parametrize(("width", "height"), [(1, 900_000), (900_000, 1), (3, 40_000)])
def test_a_strip_is_cut_before_it_is_enlarged(
    tmp_path: Path, width: int, height: int, focus: tuple[float, float] | None
) -> None:
    began = time.process_time()
    made = made_of(pictures.png(width, height), tmp_path, preset=AVATAR, focus=focus)
    assert [(one.width, one.height) for one in made.variants] == [(512, 512), (256, 256), (96, 96)]
    assert time.process_time() - began < 5


def test_what_is_small_is_enlarged_to_cover(tmp_path: Path) -> None:
    made = made_of(pictures.jpeg(60, 40), tmp_path, preset=AVATAR)
    assert [(one.width, one.height) for one in made.variants] == [(512, 512), (256, 256), (96, 96)]
    shown = pictures.open_any((tmp_path / made.variants[0].file).read_bytes())
    assert (shown.width, shown.height) == (512, 512)


def test_the_point_that_matters_is_kept(tmp_path: Path) -> None:
    long = pictures.jpeg(1200, 200)
    left = made_of(long, tmp_path, preset=AVATAR, focus=(0.0, 0.5))
    assert pictures.corner_of((tmp_path / left.variants[0].file).read_bytes())[0] > 180
    right = made_of(long, tmp_path, preset=AVATAR, focus=(1.0, 0.5))
    assert pictures.corner_of((tmp_path / right.variants[0].file).read_bytes())[2] > 60


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "The file is empty."),
        (b"hello, I am a photo", "is not a picture that can be read"),
        (pictures.SVG, "SVG is not taken"),
        (pictures.HTML, "is not a picture that can be read"),
        (pictures.bomb(), "The picture has 50000 × 50000 pixels; 50,000,000 are the most."),
        (pictures.jpeg()[:4000], "The file is damaged"),
        (b"\xff\xd8\xff" + b"\0" * 100, "The file is damaged"),
        (pictures.endless_gif(), "frames; 500 are the most"),
        (b"P5 10 10 255 " + b"\0" * 100, "is not a picture"),
        (b"%PDF-1.7 hello", "is not a picture"),
    ],
    ids=["empty", "text", "svg", "html", "bomb", "truncated", "garbage", "endless gif", "pgm", "pdf"],
)
def test_hostile_files_get_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(BadFile) as refused:
        made_of(content, tmp_path)
    assert said in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_page_behind_a_picture_is_gone(tmp_path: Path) -> None:
    made = made_of(pictures.polyglot(), tmp_path)
    assert all(b"<script>" not in (tmp_path / one.file).read_bytes() for one in made.variants)


@pytest.mark.parametrize(
    "position", ["top-left", "top-right", "bottom-left", "bottom-right", "center", "tile"]
)
def test_a_watermark_is_where_it_should_be(tmp_path: Path, position: str) -> None:
    logo = pictures.white(80, 40)
    plain = made_of(pictures.plain(600, 400), tmp_path)
    mark = Mark(file=pictures.write(tmp_path, "logo", logo), position=position, opacity=1.0, scale=0.2)
    marked = made_of(pictures.plain(600, 400), tmp_path, mark=mark)
    before, after = (
        pictures.open_any((tmp_path / next(v.file for v in one.variants if v.name == "w640")).read_bytes())
        for one in (plain, marked)
    )
    difference = (after - before).abs().bandmean()
    left, top, width, height = difference.find_trim(threshold=40, background=[0])
    centre = (left + width / 2, top + height / 2)
    wanted = {
        "top-left": (72, 42),
        "top-right": (528, 42),
        "bottom-left": (72, 358),
        "bottom-right": (528, 358),
        "center": (300, 200),
        "tile": (300, 200),
    }[position]
    assert abs(centre[0] - wanted[0]) < 25
    assert abs(centre[1] - wanted[1]) < 25


def test_a_slip_in_the_presets_names_its_line() -> None:
    text = "photo:\n  sizes:\n    - {name: big, width: 100}\n    - {name: big, width: -1}\n"
    with pytest.raises(YamchiError, match=r"media\.yaml:4: .*width"):
        read_presets(load(text, "media.yaml"))
    with pytest.raises(YamchiError, match=r"media\.yaml:2: .*colour"):
        read_presets(load("photo:\n  colour: red\n  sizes: [{name: a, width: 1}]\n", "media.yaml"))


def test_an_animation_gets_its_watermark_on_every_frame(tmp_path: Path) -> None:
    logo = pictures.write(tmp_path, "logo", pictures.white(80, 40))
    mark = Mark(file=logo, position="center", opacity=1.0, scale=0.4)
    made = made_of(pictures.animation(frames=3), tmp_path, mark=mark)
    shown = pictures.open_any((tmp_path / made.variants[0].file).read_bytes())
    assert (shown.get("n-pages"), shown.get("page-height"), shown.get("delay")) == (3, 40, [100] * 3)
    for frame in range(3):
        assert min(shown.getpoint(30, 40 * frame + 20)[:3]) > 230
        assert min(shown.getpoint(5, 40 * frame + 5)[:3]) < 160


@pytest.mark.parametrize("save", ["jpegsave_buffer", "webpsave_buffer", "pngsave_buffer"])
@pytest.mark.parametrize("width", [2561, 1999, 641, 321, 159])
def test_a_variant_has_its_size_however_its_decoder_shrinks(tmp_path: Path, width: int, save: str) -> None:
    whole = pictures.open_jpeg(pictures.scene(width, 1201))
    made = made_of(getattr(whole, save)(), tmp_path)
    for one in made.variants[:4]:
        wanted = min(int(one.name[1:]), width)
        assert (one.width, one.height) == (wanted, round(1201 * wanted / width))
        shown = pictures.open_any((tmp_path / one.file).read_bytes())
        assert (shown.width, shown.height) == (one.width, one.height)
        ideal = whole.resize(one.width / width, vscale=one.height / 1201)
        assert (shown - ideal).abs().avg() < 6


def test_what_is_transparent_does_not_bleed(tmp_path: Path) -> None:
    made = made_of(pictures.half_transparent(2000, 300), tmp_path)
    shown = pictures.open_any((tmp_path / made.variants[2].file).read_bytes())
    red, green, _, alpha = shown.getpoint(shown.width // 2 - 2, 50)
    assert (red > 230, green < 40, alpha > 230) == (True, True, True)  # nothing of the green that nobody sees
    assert shown.getpoint(shown.width - 5, 50)[3] == 0


@pytest.mark.parametrize("content", ["half_transparent", "half_transparent_animation"])
def test_what_is_cut_out_does_not_bleed_either(tmp_path: Path, content: str) -> None:
    focus = (0.5, 0.5)  # so that the edge is in the middle
    made = made_of(getattr(pictures, content)(1010, 601), tmp_path, preset=AVATAR, focus=focus)
    shown = pictures.open_any((tmp_path / made.variants[-1].file).read_bytes())
    edge = [color for x in range(shown.width) if 100 < (color := shown.getpoint(x, 10))[3] < 160]
    assert edge
    assert min(red for red, *_ in edge) > 240  # nothing of what nobody sees


def test_colors_of_ink_become_srgb(tmp_path: Path) -> None:
    made = made_of(pictures.red_ink(), tmp_path)
    red, green, blue = pictures.open_any((tmp_path / made.variants[0].file).read_bytes()).getpoint(50, 50)[:3]
    assert red > 180 > 90 > max(green, blue)


def test_colors_of_a_wider_space_become_srgb(tmp_path: Path) -> None:
    made = made_of(pictures.wide_gamut(), tmp_path)
    shown = pictures.open_any((tmp_path / made.variants[0].file).read_bytes())
    red, green, blue = shown.getpoint(100, 100)[:3]
    assert abs(red - 216) < 6  # (200, 100, 50) in Display P3 is a stronger orange in sRGB
    assert abs(green - 93) < 6
    assert abs(blue - 30) < 8


def test_how_far_it_is(tmp_path: Path) -> None:
    source = pictures.write(tmp_path, "source", pictures.jpeg())
    heard: list[dict[str, object]] = []
    made = process(
        Task(source=source, folder=tmp_path, stem="a", preset=PHOTO, max_pixels=10**7), heard.append
    )
    told = [one["percent"] for one in heard]
    assert (told[0], len(told)) == (30, 4), (
        "sizes are ready in any order, and less than ten percent are not told"
    )
    assert told == sorted(told)
    assert 80 < told[-1] <= 95
    assert (heard[0]["placeholder"], heard[0]["width"]) == (made.placeholder, 640)


@pytest.mark.parametrize("threads", [2, 8])
def test_several_threads_make_the_same(tmp_path: Path, threads: int) -> None:
    source = pictures.write(tmp_path, "source", pictures.jpeg())
    task = Task(source=source, folder=tmp_path, stem="a", preset=PHOTO, max_pixels=10**7)
    told: list[Any] = []
    made = process(task.model_copy(update={"threads": threads}), lambda news: told.append(news["percent"]))
    assert made == process(task)
    assert told == sorted(set(told))
    assert told[0] == 30
    assert told[-1] > 80


def test_a_thread_that_fails_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pictures.write(tmp_path, "source", pictures.jpeg())

    def fail(picture: object, size: Size, *rest: object) -> None:
        raise OSError(f"no room for {size.name}")

    monkeypatch.setattr("yamchi.media.processing._written", fail)
    task = Task(source=source, folder=tmp_path, stem="a", preset=PHOTO, max_pixels=10**7, threads=2)
    with pytest.raises(OSError, match=f"no room for {PHOTO.sizes[0].name}"):
        process(task)
    assert not [one for one in threading.enumerate() if one.name.startswith("variants")]


def test_the_sheet_of_watermarks_in_the_docs(tmp_path: Path) -> None:
    make_sheet(tmp_path / "sheet.png")
    sheet = pictures.open_png((tmp_path / "sheet.png").read_bytes())
    assert (sheet.width, sheet.height) == (3 * 400 + 24, 2 * 300 + 12)


LOGGING = """
import sys
from pathlib import Path
from yamchi.media.presets import Presets
from yamchi.media.processing import Task, process
from yamchi.observe.logging import configure

configure(level="debug")
folder, preset = Path(sys.argv[1]), Presets(Path("/nowhere")).get("user_avatar")
process(Task(source=folder / "a.jpg", folder=folder, stem="a", preset=preset, max_pixels=50_000_000))
"""


def test_the_decoder_writes_no_lines_of_its_own(tmp_path: Path) -> None:
    pictures.write(tmp_path, "a.jpg", pictures.jpeg())
    ran = subprocess.run(
        [sys.executable, "-c", LOGGING, tmp_path], check=True, capture_output=True, text=True
    )
    assert ran.stdout + ran.stderr == ""


KILLED = """
import os, signal, sys
from pathlib import Path
from yamchi.media.presets import Presets
from yamchi.media.processing import Task, process

os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
folder, preset = Path(sys.argv[1]), Presets(Path("/nowhere")).get("user_avatar")
process(Task(source=folder / "a.jpg", folder=folder / "out", stem="a", preset=preset, max_pixels=50_000_000))
"""


def test_a_kill_while_a_variant_is_written_leaves_nothing(tmp_path: Path) -> None:
    pictures.write(tmp_path, "a.jpg", pictures.jpeg())
    (tmp_path / "out").mkdir()
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list((tmp_path / "out").iterdir()) == []


def test_variants_are_written_where_files_need_a_name_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    made = made_of(pictures.jpeg(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"source", *(one.file for one in made.variants)}
