"""An application with a feature of its own: `yamchi up --app tests/plugins/app.py`."""

from parcels.plugin import Parcels

from yamchi import Yamchi

app = Yamchi(plugins=[Parcels])
