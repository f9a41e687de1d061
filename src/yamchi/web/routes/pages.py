"""The pages that features add to the board."""

from fastapi import APIRouter
from pydantic import BaseModel, Field

from yamchi.http.problems import documented
from yamchi.web.routes.queues import App

router = APIRouter(tags=["board"], responses=documented(401, 403))


class PageOut(BaseModel):
    """A page of a feature."""

    title: str
    path: str = Field(description="A place within the board, or the address of a page of its own.")
    module: str = Field(
        description="The ES module that shows it within the board; empty for a page of its own."
    )


@router.get("/board/pages", summary="The pages that features add to the board")
async def list_pages(app: App) -> list[PageOut]:
    return [
        PageOut(title=page.title, path=page.path, module=page.module)
        for page in app.brought(lambda plugin: plugin.pages())
    ]
