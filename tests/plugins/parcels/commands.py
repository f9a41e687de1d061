"""`yamchi parcel`."""

from parcels.plugin import Parcels

from yamchi.console.loading import AppOption, load_app, run_async, using
from yamchi.console.output import print_json


def run(app: AppOption = None) -> None:
    """Every parcel there is.

    Example: [cyan]yamchi parcel --app shop:app[/]
    """
    loaded = load_app(app)
    print_json(run_async(using(loaded, loaded.plugin(Parcels).all())))
