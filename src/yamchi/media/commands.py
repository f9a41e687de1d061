"""`yamchi media`: import a folder, list, show, sync, watermark, clean up."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import ValidationError
from rich.progress import Progress

from yamchi.console.loading import AppOption, JsonOption, check_choice, with_plugin
from yamchi.console.output import answer, console, print_fields, print_json, print_table, table, text
from yamchi.errors import ConfigurationError, Retryable, Unrecoverable, YamchiError
from yamchi.media.files import as_outage
from yamchi.media.model import Operation, Picture, Status, WatermarkJobData
from yamchi.media.plugin import Media
from yamchi.media.processing import hash_of
from yamchi.queues.handlers import describe

group = typer.Typer(
    no_args_is_help=True,
    help="Pictures: import, list, show, sync, watermark, cleanup.\n\n"
    "Example: [cyan]yamchi media list --status failed[/]",
)

MediaId = Annotated[str, typer.Argument(metavar="ID", help="The picture's id.")]
EntityType = Annotated[str, typer.Option("--entity-type", help="The preset, for example user_avatar.")]
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif"}


@group.command("import")
def import_folder(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder of pictures.", exists=True, file_okay=False)
    ],
    entity_type: EntityType = "default",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make variants of every picture in a folder, and wait for them. Again, it takes only what is new.

    Example: [cyan]yamchi media import ./photos --entity-type company_photo[/]
    """
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    imported = with_plugin(Media, app, lambda media: _import(media, found, entity_type, is_quiet=as_json))
    if as_json:
        print_json(
            {
                "imported": [one.to_dict() for one in imported.done],
                "known": imported.known,
                "refused": imported.refused,
                "stopped": imported.stopped,
            }
        )
        raise typer.Exit(1 if imported.stopped else 0)
    known = f", {len(imported.known)} were there already" if imported.known else ""
    console.print(f"[green]✔[/] {len(imported.done)} imported{known}")
    for line in imported.refused:
        console.print(f"[red]✘[/] {text(line, 300)}")
    if imported.stopped:
        console.print(
            f"[red]✘[/] {text(imported.stopped, 300)} The rest was not looked at: run it again then."
        )
        raise typer.Exit(1)


@dataclass(slots=True)
class Imported:
    """What became of the files of a folder."""

    done: list[Picture] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    stopped: str | None = None
    """Why the rest was not looked at: no fault of a file."""


async def _import(media: Media, files: list[Path], entity_type: str, *, is_quiet: bool) -> Imported:
    """As many at once as there are child processes."""
    imported, left = Imported(), iter(files)
    media.presets.get(entity_type)
    with Progress(console=console, disable=is_quiet) as progress:
        task = progress.add_task("Importing", total=len(files))

        async def work() -> None:
            for path in left:
                if imported.stopped:
                    return
                await _import_one(media, path, entity_type, imported)
                progress.advance(task)

        async with asyncio.TaskGroup() as group:
            for _ in range(media.settings.media_processes):
                group.create_task(work())
    return imported


async def _import_one(media: Media, path: Path, entity_type: str, imported: Imported) -> None:
    try:
        digest = await asyncio.to_thread(hash_of, path)
        if await media.store.with_hash(digest, entity_type, None):
            imported.known.append(str(path))
        else:
            imported.done.append(await media.process_upload(path, entity_type))
    except (OSError, YamchiError) as error:
        failure = as_outage(error)
        if isinstance(failure, OSError | Unrecoverable | Retryable):
            imported.refused.append(f"{path}: {failure}")
        else:
            imported.stopped = str(failure)


@group.command("list")
def list_media(
    status: Annotated[str | None, typer.Option(help="processing, ready, failed or soft_deleted.")] = None,
    entity_type: Annotated[str | None, typer.Option(help="Only of this kind.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 50,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest pictures.

    Example: [cyan]yamchi media list --status failed[/]
    """
    check_choice("status", status, get_args(Status))
    found, _ = with_plugin(
        Media, app, lambda media: media.store.page(status=status, entity_type=entity_type, limit=limit)
    )
    if as_json:
        print_json([one.to_dict() for one in found])
        return
    shown = table("id", "type", "status", "file", "pixels", "variants", "in the bucket", "error")
    for one in found:
        pixels = f"{one.width} × {one.height}" if one.width else ""
        copied = sum(variant.is_synced for variant in one.variants)
        row = (one.entity_type, one.status, text(one.original_filename, 40), pixels, str(len(one.variants)))
        shown.add_row(one.id, *row, str(copied or ""), text(one.error or "", 80))
    print_table(shown)


@group.command("show")
def show(media_id: MediaId, app: AppOption = None, as_json: JsonOption = False) -> None:
    """A picture with its variants.

    Example: [cyan]yamchi media show 7f9c…[/]
    """
    fields = with_plugin(Media, app, lambda media: media.get(media_id)).to_dict()
    if as_json:
        print_json(fields)
        return
    print_fields({name: value for name, value in fields.items() if name not in ("variants", "srcset")})
    shown = table("variant", "pixels", "bytes", "in the bucket", "url", right=["bytes"])
    for name, one in fields["variants"].items():
        pixels, is_copied = f"{one['width']} × {one['height']}", "yes" if one["isSynced"] else ""
        shown.add_row(text(name), pixels, f"{one['size']:,}", is_copied, text(one["url"], 400))
    print_table(shown)


@group.command("sync")
def sync(
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", help="upload, download or delete.")
    ] = "upload",
    media_id: Annotated[
        list[str] | None, typer.Option("--id", help="One picture; may be given several times.")
    ] = None,
    delete_source: Annotated[
        bool, typer.Option("--delete-source", help="Delete the files it was copied from.")
    ] = False,
    priority: Annotated[int | None, typer.Option(min=1, max=10, help="Higher ones first.")] = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue a copy to or from the bucket: of those named, or of all.

    Example: [cyan]yamchi media sync upload --delete-source[/]
    """
    chosen: Operation = check_choice("operation", operation, get_args(Operation))
    how: dict[str, Any] = {"delete_source": delete_source, "priority": priority}

    async def body(media: Media) -> int:
        if media_id:
            return len(await media.sync.sync(media_id, chosen, **how))
        count = 0
        async for count in media.sync.sync_all(chosen, **how):
            if not as_json:
                console.print(f"{count} queued")
        return count

    queued = with_plugin(Media, app, body)
    answer({"queued": queued}, f"{queued} queued; a worker copies them", as_json=as_json)


@group.command("watermark")
def watermark(
    media_id: MediaId,
    watermark_id: Annotated[
        str | None, typer.Argument(metavar="WATERMARK", help="The watermark's id.")
    ] = None,
    position: Annotated[str, typer.Option(help="top-left … bottom-right, center or tile.")] = "bottom-right",
    opacity: Annotated[float, typer.Option(min=0.1, max=1.0, help="1 hides what is below it.")] = 0.5,
    scale: Annotated[
        float, typer.Option(min=0.1, max=1.0, help="Its width, as a part of the picture's.")
    ] = 0.2,
    off: Annotated[bool, typer.Option("--off", help="Take the watermark off.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue a watermark for a picture, or take it off again.

    Example: [cyan]yamchi media watermark 7f9c… wm-logo --position tile --opacity 0.3[/] · [cyan]yamchi media watermark 7f9c… --off[/]
    """
    if off == (watermark_id is not None):
        raise ConfigurationError("Name a watermark, or say --off to take it off.")
    fields = {"mediaId": media_id, "watermarkId": watermark_id, "position": position}
    if off:
        job_id = with_plugin(Media, app, lambda media: media.watermarks.take_off(media_id))
    else:
        data = _watermark({**fields, "opacity": opacity, "scale": scale})
        job_id = with_plugin(Media, app, lambda media: media.watermarks.apply(data))
    answer({"jobId": job_id}, f"job {job_id}", as_json=as_json)


@group.command("cleanup")
def cleanup(
    days: Annotated[
        int | None,
        typer.Option(min=0, help="Deleted this many days ago or earlier; by default MEDIA_CLEANUP_DAYS."),
    ] = None,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Look for files that no picture names instead.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="With --orphans: remove them, too.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove for good what was deleted long ago.

    Example: [cyan]yamchi media cleanup --orphans --delete[/]
    """
    if orphans:
        cleaned = with_plugin(Media, app, lambda media: media.cleanup.orphans(delete=delete))
    else:
        cleaned = with_plugin(Media, app, lambda media: media.cleanup.run(days))
    if as_json:
        print_json({**cleaned.to_dict(), "orphans": cleaned.orphans})
        return
    for key in cleaned.orphans:
        console.print(text(key, 200))
    console.print(f"[green]✔[/] {cleaned.deleted} removed, {cleaned.freed_bytes:,} bytes")


def _watermark(fields: dict[str, Any]) -> WatermarkJobData:
    try:
        return WatermarkJobData.model_validate(fields)
    except ValidationError as error:
        raise ConfigurationError(describe(error)) from None
