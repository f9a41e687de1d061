"""The application of the kill tests' processes: scenarios on leads in a table."""

from tests.scenarios.leads import TableLeads
from yamchi import Yamchi

app = Yamchi()
app.scenarios.entities.register("lead", TableLeads(app.database))
