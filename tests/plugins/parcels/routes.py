"""Parcels over HTTP: a sender brings one, the admin looks at all."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from parcels.plugin import Parcels
from pydantic import BaseModel

from yamchi.plugins import Routes, of_request

router = APIRouter(tags=["parcels"])
senders = APIRouter(tags=["parcels"])
TheParcels = Annotated[Parcels, Depends(of_request(Parcels))]


class ParcelIn(BaseModel):
    parcel_id: str
    user_id: str


@senders.post("/parcels", status_code=202)
async def bring(parcels: TheParcels, parcel: ParcelIn) -> dict[str, str]:
    return {"job_id": await parcels.bring(parcel.parcel_id, parcel.user_id)}


@router.get("/parcels")
async def list_parcels(parcels: TheParcels) -> list[dict[str, Any]]:
    return await parcels.all()


ROUTES = (Routes(senders, access="send"), Routes(router))
