"""A feature in one folder, as somebody else would write it: parcels that are weighed. Nothing under `src/` knows it."""
