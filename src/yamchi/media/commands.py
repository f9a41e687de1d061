"""`yamchi media`: import a folder, list, show, sync, watermark, clean up."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.progress import track

from yamchi.console.loading import AppOption, JsonOption, load_app, run_async, using
from yamchi.console.output import console, print_json, table, text
from yamchi.errors import ConfigurationError
from yamchi.media.formats import BadFile
from yamchi.media.model import Media as Picture
from yamchi.media.model import Operation, WatermarkJobData
from yamchi.media.plugin import Media

group = typer.Typer(no_args_is_help=True, help="Pictures: import, list, show, sync, watermark, cleanup.")

T = TypeVar("T")
MediaId = Annotated[str, typer.Argument(help="The picture's id.")]
EntityType = Annotated[str, typer.Option("--entity-type", help="The preset, for example user_avatar.")]
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif"}


@group.command("import")
def import_folder(
    folder: Annotated[Path, typer.Argument(help="A folder of pictures.", exists=True, file_okay=False)],
    entity_type: EntityType = "default",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make variants of every picture in a folder, one after the other, and wait for them.

    Example: [cyan]yamchi media import ./photos --entity-type company_photo[/]
    """
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)

    async def body(media: Media) -> tuple[list[Picture], list[str]]:
        done: list[Picture] = []
        refused: list[str] = []
        for path in track(found, "Importing", console=console, disable=as_json):
            try:
                done.append(await media.process_upload(path, entity_type))
            except BadFile as error:
                refused.append(f"{path}: {error}")
        return done, refused

    done, refused = _with(app, body)
    if as_json:
        print_json({"imported": [one.to_dict() for one in done], "refused": refused})
        return
    console.print(f"[green]✔[/] {len(done)} imported")
    for line in refused:
        console.print(f"[red]✘[/] {text(line, 300)}")


@group.command("list")
def list_media(
    status: Annotated[str | None, typer.Option(help="processing, ready, failed or soft_deleted.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 50,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest pictures.

    Example: [cyan]yamchi media list --status failed[/]
    """
    found, _ = _with(app, lambda media: media.store.page(status=status, limit=limit))
    if as_json:
        print_json([one.to_dict() for one in found])
        return
    shown = table("id", "type", "status", "file", "pixels", "variants", "error")
    for one in found:
        pixels = f"{one.width} × {one.height}" if one.width else ""
        row = (one.entity_type, one.status, text(one.original_filename, 40), pixels, str(len(one.variants)))
        shown.add_row(one.id, *row, text(one.error or "", 80))
    console.print(shown)


@group.command("show")
def show(media_id: MediaId, app: AppOption = None) -> None:
    """A picture with its variants, as JSON.

    Example: [cyan]yamchi media show 7f9c…[/]
    """
    print_json(_with(app, lambda media: media.get(media_id)).to_dict())


@group.command("sync")
def sync(
    operation: Annotated[str, typer.Argument(help="upload, download or delete.")] = "upload",
    media_id: Annotated[
        list[str] | None, typer.Option("--id", help="One picture; may be given several times.")
    ] = None,
    delete_source: Annotated[bool, typer.Option(help="Delete the files it was copied from.")] = False,
    app: AppOption = None,
) -> None:
    """Queue a copy to or from the bucket: of those named, or of all.

    Example: [cyan]yamchi media sync upload --delete-source[/]
    """
    chosen = _operation(operation)

    async def body(media: Media) -> int:
        if media_id:
            return len(await media.sync.sync(media_id, chosen, delete_source=delete_source))
        count = 0
        async for done in media.sync.sync_all(chosen, delete_source=delete_source):
            count = done
            console.print(f"{count} queued")
        return count

    console.print(f"[green]✔[/] {_with(app, body)} queued; a worker copies them")


@group.command("watermark")
def watermark(
    media_id: MediaId,
    watermark_id: Annotated[str, typer.Argument(help="The watermark's id.")],
    position: Annotated[str, typer.Option(help="top-left … bottom-right, center or tile.")] = "bottom-right",
    opacity: Annotated[float, typer.Option(min=0.1, max=1.0)] = 0.5,
    scale: Annotated[float, typer.Option(min=0.1, max=1.0)] = 0.2,
    app: AppOption = None,
) -> None:
    """Queue a watermark for a picture.

    Example: [cyan]yamchi media watermark 7f9c… wm-logo --position tile --opacity 0.3[/]
    """
    fields = {"mediaId": media_id, "watermarkId": watermark_id, "position": position}
    data = WatermarkJobData.model_validate({**fields, "opacity": opacity, "scale": scale})
    console.print(f"[green]✔[/] job {_with(app, lambda media: media.watermarks.apply(data))}")


@group.command("cleanup")
def cleanup(
    days: Annotated[int, typer.Option(min=0, help="Deleted this many days ago or earlier.")] = 30,
    orphans: Annotated[bool, typer.Option(help="Look for files that no picture names instead.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="With --orphans: remove them, too.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove for good what was deleted long ago.

    Example: [cyan]yamchi media cleanup --orphans --delete[/]
    """
    if orphans:
        cleaned = _with(app, lambda media: media.cleanup.orphans(delete=delete))
    else:
        cleaned = _with(app, lambda media: media.cleanup.run(days))
    if as_json:
        print_json({**cleaned.to_dict(), "orphans": cleaned.orphans})
        return
    for key in cleaned.orphans:
        console.print(text(key, 200))
    console.print(f"[green]✔[/] {cleaned.deleted} removed, {cleaned.freed_bytes:,} bytes")


def _operation(given: str) -> Operation:
    match given:
        case "upload" | "download" | "delete":
            return given
    raise ConfigurationError(f"{given} is no sync: choose upload, download or delete.")


def _with(reference: str | None, act: Callable[[Media], Coroutine[Any, Any, T]]) -> T:
    """Do something with the media of the application."""
    app = load_app(reference)
    return run_async(using(app, act(app.plugin(Media))))
