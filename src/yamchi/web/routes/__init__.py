"""The API, one file per resource."""
